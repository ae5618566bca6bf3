//! Why a prompt could not be rendered, and whose fault it is.

use std::path::PathBuf;

/// Why a template could not be loaded or rendered. There is no generic template to fall back on: a model asked in the
/// wrong words answers badly and nobody sees why.
#[derive(Debug, thiserror::Error)]
pub enum TemplateError {
    /// The checkpoint has no template.
    #[error(
        "{}: neither chat_template.jinja nor a chat_template in tokenizer_config.json; copy it from the published checkpoint",
        dir.display()
    )]
    Missing {
        /// The checkpoint's folder.
        dir: PathBuf,
    },
    /// A file is there but can't be read or has another form.
    #[error("{}: {message}", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        message: String,
    },
    /// The template consists of an include, and the included file is not in the folder.
    #[error("{}: the chat template includes {name:?}, which is not in this folder; copy it from the published checkpoint", dir.display())]
    IncludeMissing {
        /// The checkpoint's folder.
        dir: PathBuf,
        /// The file named by the include.
        name: String,
    },
    /// The template does not compile.
    #[error("{origin}: not a template this program can render: {message}")]
    Syntax {
        /// Where the template came from.
        origin: String,
        /// What the compiler said, with the line.
        message: String,
    },
    /// The template itself refused the conversation with `raise_exception`: the request's fault.
    #[error("the model's chat template refuses this conversation: {0}")]
    Refused(String),
    /// An argument has the name of one of the template's own inputs: the request's fault.
    #[error("chat_template_kwargs.{0}: this name belongs to the request itself")]
    ReservedKwarg(String),
    /// Rendering failed: usually a conversation of a shape the template never expected.
    #[error("{origin}: rendering failed: {message}")]
    Failed {
        /// Where the template came from.
        origin: String,
        /// What the renderer said, with the line.
        message: String,
    },
}

impl TemplateError {
    /// Whether another request could succeed: the conversation is at fault, not the checkpoint.
    pub const fn is_request_fault(&self) -> bool {
        matches!(self, Self::Refused(_) | Self::ReservedKwarg(_) | Self::Failed { .. })
    }
}

/// Marks the errors that `raise_exception` makes, so that they can be told from the renderer's own.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(super) struct Raised(pub(super) String);

/// The message given to `raise_exception`, if that is what `error` comes from.
pub(super) fn raised(error: &minijinja::Error) -> Option<String> {
    let mut source = std::error::Error::source(error);
    while let Some(error) = source {
        if let Some(raised) = error.downcast_ref::<Raised>() {
            return Some(raised.0.clone());
        }
        source = error.source();
    }
    None
}
