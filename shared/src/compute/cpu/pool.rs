//! Threads that work through a list of tasks together, for as long as one product takes.
//!
//! Each thread begins with a run of consecutive tasks, since what the kernels ask memory for ahead of time is the
//! beginning of the next task; whoever has none left takes others' last ones.
//!
//! Idle threads look for work for a moment, since the next phase of a layer follows within microseconds, and then
//! sleep. Whoever calls `run` works too, so what a sleeping thread misses is done by others. Two phases of 0.5 ms on two
//! threads, a millisecond after the last, took 45 to 65 µs longer than their work, with rayon 100 to 150.

use std::cell::UnsafeCell;
use std::fmt;
use std::hint::spin_loop;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle, Thread};
use std::time::{Duration, Instant};

use super::lines::Lines;

/// A number of threads, the caller's included.
pub struct Pool {
    shared: Arc<Shared>,
    /// The caller's working memory; held by whoever runs tasks, so that two callers take turns.
    turn: Mutex<Scratch>,
    sleepers: Vec<Thread>,
    workers: Vec<JoinHandle<()>>,
}

/// A thread's working memory, kept from task to task.
#[derive(Debug, Default)]
pub(super) struct Scratch {
    pub(super) work: Work,
    pub(super) left: Lines<f32>,
    pub(super) right: Lines<f32>,
}

/// What [`super::panel`] needs.
#[derive(Debug, Default)]
pub(super) struct Work {
    pub(super) panel: Lines<f32>,
    pub(super) sums: Lines<f32>,
}

struct Shared {
    /// Number of the job, times two; plus one while it is open to threads that have not joined it.
    state: AtomicU64,
    job: UnsafeCell<Option<Job>>,
    /// By thread, the caller first: the tasks that it has not taken.
    tasks: Vec<Tasks>,
    /// Threads that may look at `job`.
    joined: AtomicUsize,
    panicked: AtomicBool,
    asleep: Vec<AtomicBool>,
}

/// Consecutive tasks, of which the owner takes the first one and others the last. On cache lines of its own.
#[repr(align(128))]
struct Tasks(AtomicU64);

#[derive(Clone, Copy)]
struct Job {
    work: *const (dyn Fn(usize, &mut Scratch) + Sync),
}

// SAFETY: `job` is written by the one caller whose turn it is, while the job is closed and nobody has joined; `work`
// points to something `Sync` that outlives the job (see `Pool::run`).
unsafe impl Send for Shared {}
// SAFETY: as above.
unsafe impl Sync for Shared {}

impl Pool {
    /// A pool of `threads`, at least one: whoever calls it, and `threads - 1` others.
    pub fn new(threads: usize) -> Arc<Self> {
        let others = threads.clamp(1, MOST_THREADS) - 1;
        let shared = Arc::new(Shared {
            state: AtomicU64::new(0),
            job: UnsafeCell::new(None),
            tasks: (0..=others).map(|_| Tasks(AtomicU64::new(0))).collect(),
            joined: AtomicUsize::new(0),
            panicked: AtomicBool::new(false),
            asleep: (0..others).map(|_| AtomicBool::new(false)).collect(),
        });
        // A machine that starts no more threads still has this one.
        let workers: Vec<JoinHandle<()>> = (0..others)
            .map_while(|index| {
                let shared = Arc::clone(&shared);
                let name = format!("cpu-{}", index + 1);
                thread::Builder::new().name(name).spawn(move || shared.work(index)).ok()
            })
            .collect();
        let sleepers = workers.iter().map(|worker| worker.thread().clone()).collect();
        Arc::new(Self { shared, turn: Mutex::default(), sleepers, workers })
    }

    /// Threads, the caller's included.
    pub fn threads(&self) -> usize {
        self.workers.len() + 1
    }

    /// Whether every other thread has gone to sleep, if there are any: a run then begins with waking them.
    pub(super) fn sleeps(&self) -> bool {
        self.shared.asleep.iter().all(|asleep| asleep.load(SeqCst))
    }

    /// Calls `work` once with each number below `tasks`, in no order and on any thread, and returns when all are done.
    ///
    /// Must not be called from inside `work`.
    ///
    /// # Panics
    /// If a task panics, or there are more than `u32` can count.
    pub(super) fn run(&self, tasks: usize, work: &(dyn Fn(usize, &mut Scratch) + Sync)) {
        let count = u32::try_from(tasks).expect("as many tasks as a matrix has tiles, or a pass tokens");
        if tasks <= 1 || self.workers.is_empty() {
            self.run_alone(tasks, work);
            return;
        }
        let mut scratch = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        let shared = &*self.shared;
        // SAFETY: only the lifetime changes. `Closing` waits for every thread that has joined before this function
        // ends, by return or panic, and nobody joins or looks afterwards.
        let work: *const (dyn Fn(usize, &mut Scratch) + Sync) = unsafe {
            std::mem::transmute::<
                &(dyn Fn(usize, &mut Scratch) + Sync),
                &'static (dyn Fn(usize, &mut Scratch) + Sync),
            >(work)
        };
        let job = Job { work };
        // SAFETY: it is this caller's turn, the last job is closed and everyone has left it.
        unsafe { *shared.job.get() = Some(job) };
        shared.share(count);
        // Left behind if the last caller's own task panicked as well.
        shared.panicked.store(false, SeqCst);
        shared.state.fetch_add(1, SeqCst);
        for (asleep, thread) in shared.asleep.iter().zip(&self.sleepers).take(tasks - 1) {
            if asleep.swap(false, SeqCst) {
                thread.unpark();
            }
        }
        let closing = Closing(shared);
        shared.take_tasks(0, job, &mut scratch);
        drop(closing);
        assert!(!shared.panicked.swap(false, SeqCst), "a task of the pool panicked");
    }

    /// [`Pool::run`] on the calling thread only: for what is done before another thread has woken up.
    pub(super) fn run_alone(&self, tasks: usize, work: &(dyn Fn(usize, &mut Scratch) + Sync)) {
        let mut scratch = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        (0..tasks).for_each(|task| work(task, &mut scratch));
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.shared.state.store(STOP, SeqCst);
        for worker in self.workers.drain(..) {
            worker.thread().unpark();
            // It catches the panics of its tasks, and has none of its own.
            let _ = worker.join();
        }
    }
}

impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Pool({} threads)", self.threads())
    }
}

/// Closes the job and waits for the threads that joined it.
struct Closing<'a>(&'a Shared);

impl Drop for Closing<'_> {
    fn drop(&mut self) {
        self.0.state.fetch_add(1, SeqCst);
        // Should a task of the caller have panicked, the others need not begin what is left.
        self.0.tasks.iter().for_each(Tasks::clear);
        let mut turns = 0_u32;
        // Each has at most one task to finish; on a busy machine it may need this very processor for that.
        while self.0.joined.load(SeqCst) > 0 {
            turns = turns.saturating_add(1);
            if turns < SPINS { spin_loop() } else { thread::yield_now() }
        }
    }
}

impl Tasks {
    fn set(&self, tasks: Range<u32>) {
        self.0.store(u64::from(tasks.start) << 32 | u64::from(tasks.end), SeqCst);
    }

    fn clear(&self) {
        self.set(0..0);
    }

    fn first(&self) -> Option<usize> {
        self.take(|tasks| (tasks.start, tasks.start + 1..tasks.end))
    }

    fn last(&self) -> Option<usize> {
        self.take(|tasks| (tasks.end - 1, tasks.start..tasks.end - 1))
    }

    /// Takes a task, unless there is none; `split` says which, and what is left.
    fn take(&self, split: impl Fn(Range<u32>) -> (u32, Range<u32>)) -> Option<usize> {
        let mut held = self.0.load(SeqCst);
        loop {
            let tasks = (held >> 32) as u32..held as u32;
            if tasks.is_empty() {
                return None;
            }
            let (task, Range { start, end }) = split(tasks);
            let left = u64::from(start) << 32 | u64::from(end);
            match self.0.compare_exchange_weak(held, left, SeqCst, SeqCst) {
                Ok(_) => return Some(task as usize),
                Err(now) => held = now,
            }
        }
    }
}

impl Shared {
    /// A thread's life.
    fn work(&self, index: usize) {
        let mut scratch = Scratch::default();
        let mut done = 0;
        loop {
            let state = self.wait(index, done);
            if state == STOP {
                return;
            }
            done = state;
            // Join first and look again then: whoever closes the job looks at `joined` after closing.
            self.joined.fetch_add(1, SeqCst);
            if self.state.load(SeqCst) == state {
                // SAFETY: the job is open and this thread has joined, so nobody writes until it leaves.
                if let Some(job) = unsafe { *self.job.get() } {
                    let tasks = AssertUnwindSafe(|| self.take_tasks(index + 1, job, &mut scratch));
                    if catch_unwind(tasks).is_err() {
                        self.panicked.store(true, SeqCst);
                    }
                }
            }
            self.joined.fetch_sub(1, SeqCst);
        }
    }

    /// Gives every thread an equal run of `count` tasks, within one.
    fn share(&self, count: u32) {
        let (threads, mut start) = (self.tasks.len() as u64, 0);
        for (n, tasks) in (1..).zip(&self.tasks) {
            let end = (u64::from(count) * n / threads) as u32;
            tasks.set(start..end);
            start = end;
        }
    }

    fn take_tasks(&self, thread: usize, job: Job, scratch: &mut Scratch) {
        // SAFETY: `run` keeps it alive until everyone who joined has left.
        let work = unsafe { &*job.work };
        while let Some(task) = self.tasks[thread].first() {
            work(task, scratch);
        }
        // Tasks only become fewer, so one look at each of the others is enough.
        for others in self.tasks[thread + 1..].iter().chain(&self.tasks[..thread]) {
            while let Some(task) = others.last() {
                work(task, scratch);
            }
        }
    }

    /// Waits for an open job other than `done`, or the end.
    fn wait(&self, index: usize, done: u64) -> u64 {
        let news = || {
            let state = self.state.load(SeqCst);
            (state == STOP || (state % 2 == 1 && state != done)).then_some(state)
        };
        let (mut turns, began) = (0_u32, Instant::now());
        loop {
            if let Some(state) = news() {
                return state;
            }
            turns = turns.saturating_add(1);
            if turns < SPINS {
                spin_loop();
                continue;
            }
            if began.elapsed() < LOOK_OUT {
                thread::yield_now();
                continue;
            }
            self.asleep[index].store(true, SeqCst);
            // Who opens a job afterwards sees `asleep`; who opened it before is seen here.
            match news() {
                Some(state) => {
                    self.asleep[index].store(false, SeqCst);
                    return state;
                }
                None => thread::park(),
            }
        }
    }
}

/// State of a pool that ends.
const STOP: u64 = u64::MAX - 1;

/// Turns of a waiting loop before it lets others run: some microseconds.
const SPINS: u32 = 200;

/// How long an idle thread looks for work before it sleeps. Phases of a layer follow each other within it; layers, with
/// a trunk between them, do not.
const LOOK_OUT: Duration = Duration::from_micros(150);

const MOST_THREADS: usize = 1024;

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn every_task_is_done_once() {
        for threads in [1, 2, 3, 7] {
            let pool = Pool::new(threads);
            assert_eq!(pool.threads(), threads);
            for tasks in [0, 1, 2, 5, 100] {
                for _ in 0..20 {
                    let counts: Vec<AtomicUsize> = (0..tasks).map(|_| AtomicUsize::new(0)).collect();
                    pool.run(tasks, &|task, _| _ = counts[task].fetch_add(1, SeqCst));
                    assert!(counts.iter().all(|count| count.load(SeqCst) == 1), "{threads} {tasks}");
                }
            }
        }
    }

    #[test]
    fn tasks_that_wait_for_each_other_run_at_once_even_on_sleeping_threads() {
        let pool = Pool::new(3);
        for _ in 0..3 {
            let together = std::sync::Barrier::new(3);
            let threads = Mutex::new(HashSet::new());
            pool.run(3, &|_, _| {
                together.wait();
                threads.lock().unwrap().insert(thread::current().id());
            });
            assert_eq!(threads.lock().unwrap().len(), 3);
            // All threads park: only then can the next round show that they are woken.
            while !pool.shared.asleep.iter().all(|asleep| asleep.load(SeqCst)) {
                thread::yield_now();
            }
        }
    }

    #[test]
    fn a_panic_reaches_the_caller_and_the_pool_lives_on() {
        let pool = Pool::new(2);
        for bad in 0..4 {
            let run = || pool.run(4, &|task, _| assert!(task != bad, "task {bad}"));
            assert!(catch_unwind(AssertUnwindSafe(run)).is_err());
        }
        let sum = AtomicUsize::new(0);
        pool.run(4, &|task, _| _ = sum.fetch_add(task, SeqCst));
        assert_eq!(sum.into_inner(), 6);
    }

    #[test]
    fn callers_take_turns() {
        let (pool, sum) = (Pool::new(2), AtomicUsize::new(0));
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| (0..50).for_each(|_| pool.run(3, &|_, _| _ = sum.fetch_add(1, SeqCst))));
            }
        });
        assert_eq!(sum.into_inner(), 4 * 50 * 3);
    }
}
