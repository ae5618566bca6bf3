//! A load, told to whoever watches: bars and lines on stderr, and to the API how much of this process's part is done.

use std::time::Duration;

use laguna_topology::Bytes;
use laguna_worker::progress::Progress;

use crate::http::state::Loading;

/// Is told how far a load is, often.
pub type Watch<'a> = &'a dyn Fn(Loading);

/// All that this process loads.
pub struct Load<'a> {
    watch: Watch<'a>,
    total: u64,
    done: u64,
}

impl<'a> Load<'a> {
    /// Begins: `total` will be loaded, part by part.
    pub fn new(watch: Watch<'a>, total: Bytes) -> Self {
        Self { watch, total: total.0, done: 0 }
    }

    /// Loads one part of `bytes`; `load` tells bytes as they are read. Returns the time it took, too.
    ///
    /// # Errors
    /// Those of `load`.
    pub fn part<T, E>(
        &mut self,
        what: &str,
        bytes: Bytes,
        load: impl FnOnce(&mut dyn FnMut(u64)) -> Result<T, E>,
    ) -> Result<(T, Duration), E> {
        let mut progress = Progress::new(what, bytes.0);
        let (began, total, watch) = (self.done, self.total, self.watch);
        let tell = |done: u64| {
            let share = (total > 0).then(|| (done as f32 / total as f32).min(1.0));
            watch(Loading { progress: share, what: what.to_owned() });
        };
        tell(began);
        let mut done = began;
        let loaded = load(&mut |more| {
            done += more;
            progress.add(more);
            tell(done);
        })?;
        self.done = began.saturating_add(bytes.0);
        Ok((loaded, progress.finish()))
    }
}

/// Nobody watches.
pub fn unwatched(_: Loading) {}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;

    #[test]
    fn shares_are_of_the_whole_and_never_fall() {
        let told = RefCell::new(Vec::new());
        let watch = |loading| told.borrow_mut().push(loading);
        let mut load = Load::new(&watch, Bytes(200));
        let read = |counts: &'static [u64]| {
            move |tell: &mut dyn FnMut(u64)| -> Result<(), ()> {
                counts.iter().for_each(|count| tell(*count));
                Ok(())
            }
        };
        load.part("trunk", Bytes(50), read(&[20, 30])).expect("loads");
        // What is read and what was planned may differ by a little.
        load.part("shard 0", Bytes(150), read(&[100, 60])).expect("loads");
        let told = told.into_inner();
        let shares: Vec<f32> = told.iter().filter_map(|loading| loading.progress).collect();
        assert_eq!(shares, [0.0, 0.1, 0.25, 0.25, 0.75, 1.0]);
        assert_eq!((told[1].what.as_str(), told[5].what.as_str()), ("trunk", "shard 0"));
    }
}
