//! `eval`: prompts in, everything the model computed for them out.

use laguna_shared::compute::ActivationType;

use super::args::{Args, EvalArgs};
use super::cluster;
use super::failure::Failure;
use super::loading::unwatched;
use super::output;
use crate::reference::record::{Recording, read_prompts};

/// Runs the command.
///
/// # Errors
/// With one message; nothing is then written.
pub fn run(args: &Args, command: &EvalArgs) -> Result<(), Failure> {
    let prompts = read_prompts(&command.prompts).map_err(Failure::usage)?;
    let folder = command.out.parent().filter(|dir| !dir.as_os_str().is_empty());
    if let Some(folder) = folder.filter(|dir| !dir.is_dir()) {
        return Err(Failure::usage(format!("--out: {} is no folder", folder.display())));
    }
    let mut cluster = cluster::open(&args.cluster, ActivationType::F32, None, &unwatched)?;
    let mut recording = Recording::default();
    for prompt in &prompts {
        recording
            .run(&cluster.model, &mut cluster.experts, prompt, cluster.chunk)
            .map_err(|e| Failure::failed(format!("prompt {}: {e}", prompt.key)))?;
    }
    recording.write(&command.out).map_err(Failure::failed)?;
    output::say(format_args!("{} prompts written to {}", prompts.len(), command.out.display()));
    Ok(())
}
