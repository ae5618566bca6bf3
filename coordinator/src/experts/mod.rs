//! Routed rows out to the shards and back, as the engine sees it.
//!
//! - [`scatter`]: rows and choices, grouped by the shard that holds each expert
//! - [`gather`]: partial sums of the shards, added in shard order
//! - [`local`]: a shard that this process holds itself
//! - [`timing`]: how long the exchange took, and each shard's calls
//! - [`histogram`]: durations by size
//!
//! The shards' replies are added in shard order, never in arrival order: same topology, same bits.

pub mod gather;
pub mod histogram;
pub mod local;
pub mod scatter;
pub mod timing;

use std::sync::Arc;
use std::time::Instant;

use laguna_shared::compute::{ActivationType, BankError};
use laguna_shared::ids::{ExpertId, LayerId, ShardId};
use laguna_shared::session::{Links, Reply, ShardError};
use laguna_shared::wire::CallId;

use crate::engine::handle::ShardStatus;
use crate::flight::{Call, Flight, Stage};
use crate::model::router::Choices;
use gather::Gather;
use local::LocalShard;
use scatter::Scatter;
use timing::{ExchangeSummary, ExchangeTimes, ShardTimes};

/// Every shard of the cluster, local and remote, and who holds which expert.
pub struct Experts {
    /// Records where the time goes. It flies with the experts because every stage of a pass can reach them.
    pub flight: Flight,
    /// In shard order.
    shards: Vec<Shard>,
    /// Index into `shards` for each expert.
    owners: Vec<u16>,
    local: Option<LocalShard>,
    links: Box<dyn Links>,
    /// Replies that came while another dispatch was being collected.
    inbox: Vec<Reply>,
    /// Buffers of dispatches that are done.
    spare: Vec<Scatter>,
    /// One for each layer under way.
    staging: Vec<Staging>,
    gather: Gather,
    times: ExchangeTimes,
    /// By link.
    link_times: Vec<ShardTimes>,
    local_times: ShardTimes,
}

#[derive(Clone, Copy, Debug)]
enum Shard {
    Local,
    /// Index into the links.
    Remote(usize),
}

/// One sparse layer's rows, their experts and weights.
#[derive(Debug)]
pub struct RoutedRows {
    /// Decoder layer.
    pub layer: LayerId,
    /// Element type of `rows`.
    pub activation: ActivationType,
    /// Elements per row.
    pub hidden: usize,
    /// Experts per row.
    pub top_k: usize,
    /// `[rows, top_k]`.
    pub choices: Choices,
    /// `[rows, hidden]`, row-major, little-endian.
    pub rows: Vec<u8>,
}

/// Memory for one sparse layer's numbers on their way from the trunk to the shards; it goes from layer to layer.
#[derive(Debug, Default)]
pub struct Staging {
    /// Router logits, `[rows, experts]`.
    pub logits: Vec<f32>,
    /// Of [`RoutedRows`].
    pub choices: Choices,
    /// Of [`RoutedRows`].
    pub rows: Vec<u8>,
}

/// A dispatched layer whose sums are yet to be collected. Several may be under way.
#[derive(Debug)]
#[must_use = "replies that are not collected stay in memory"]
pub struct Dispatch {
    started: Instant,
    scatter: Scatter,
    /// The call each shard answers, in shard order; `None` for the local shard and for shards without rows.
    calls: Vec<Option<CallId>>,
}

/// Why a sparse layer failed.
#[derive(Debug, thiserror::Error)]
pub enum ExpertsError {
    /// A remote shard failed; the error names it.
    #[error(transparent)]
    Shard(#[from] ShardError),
    /// The shard in this process failed.
    #[error("{shard} (in this process): {source}")]
    Local {
        /// The shard.
        shard: ShardId,
        /// What its bank said.
        source: BankError,
    },
    /// A call was abandoned while another dispatch failed.
    #[error("this layer's calls were given up when another layer's failed")]
    Lost,
    /// An expert that no shard holds: the plan and the model disagree.
    #[error("{layer}: no shard holds {expert}; the topology covers {covered} experts")]
    Unowned {
        /// Decoder layer.
        layer: LayerId,
        /// As routed.
        expert: ExpertId,
        /// Experts that the plan covers.
        covered: usize,
    },
    /// The plan names a shard that is neither local nor connected.
    #[error("{expert} belongs to {owner}, which is neither in this process nor connected")]
    UnknownOwner {
        /// As planned.
        expert: ExpertId,
        /// As planned.
        owner: ShardId,
    },
}

impl Experts {
    /// A cluster whose `owners[e]` is the shard that answers for expert e. `links` drives every remote shard, `local`
    /// is the one in this process, if any.
    ///
    /// # Errors
    /// [`ExpertsError::UnknownOwner`].
    pub fn new(
        owners: &[ShardId],
        links: Box<dyn Links>,
        local: Option<LocalShard>,
    ) -> Result<Self, ExpertsError> {
        let remote = (0..).zip(links.shards()).map(|(index, info)| (info.shard, Shard::Remote(index)));
        let here = local.as_ref().map(|local| (local.shard(), Shard::Local));
        let mut known: Vec<(ShardId, Shard)> = remote.chain(here).collect();
        known.sort_by_key(|(id, _)| *id);
        let owners = (0..)
            .map(ExpertId)
            .zip(owners)
            .map(|(expert, &owner)| {
                let index = known.iter().position(|(id, _)| *id == owner);
                index.map(|i| i as u16).ok_or(ExpertsError::UnknownOwner { expert, owner })
            })
            .collect::<Result<_, _>>()?;
        let link_times = links.shards().iter().map(|_| ShardTimes::default()).collect();
        Ok(Self {
            flight: Flight::default(),
            shards: known.into_iter().map(|(_, shard)| shard).collect(),
            owners,
            local,
            links,
            inbox: Vec::new(),
            spare: Vec::new(),
            staging: Vec::new(),
            gather: Gather::default(),
            times: ExchangeTimes::default(),
            link_times,
            local_times: ShardTimes::default(),
        })
    }

    /// The remote shards.
    pub fn links(&self) -> &dyn Links {
        self.links.as_ref()
    }

    /// Whether calls travel to some shard, be it only within this process.
    pub fn travel(&self) -> bool {
        !self.links.shards().is_empty()
    }

    /// The shard in this process.
    pub const fn local(&self) -> Option<&LocalShard> {
        self.local.as_ref()
    }

    /// Empty buffers, as large as the last layer's if they were given back.
    pub fn take_staging(&mut self) -> Staging {
        let mut staging = self.staging.pop().unwrap_or_default();
        staging.logits.clear();
        staging.choices.experts.clear();
        staging.choices.weights.clear();
        staging.rows.clear();
        staging
    }

    /// Takes them back for the next layer. Dropping them is correct, only slower.
    pub fn keep_staging(&mut self, staging: Staging) {
        self.staging.push(staging);
    }

    /// Sends a layer's rows to the remote shards that hold their experts. Nothing is computed here yet.
    ///
    /// # Errors
    /// See [`ExpertsError`].
    pub fn dispatch(&mut self, routed: &RoutedRows) -> Result<Dispatch, ExpertsError> {
        let started = Instant::now();
        let sending = self.flight.begin();
        let mut scatter = self.spare.pop().unwrap_or_default();
        let groups = scatter.group(routed, &self.owners, self.shards.len()).map_err(|expert| {
            ExpertsError::Unowned { layer: routed.layer, expert, covered: self.owners.len() }
        })?;
        let mut calls = Vec::with_capacity(groups.len());
        let mut failed = None;
        for (group, shard) in groups.iter().zip(&self.shards) {
            calls.push(match *shard {
                Shard::Remote(link) if !group.is_empty() => {
                    self.links.send(link, &group.batch(routed)).map_err(|e| failed = Some(e)).ok()
                }
                Shard::Remote(_) | Shard::Local => None,
            });
        }
        if let Some(error) = failed {
            self.give_up();
            return Err(error.into());
        }
        self.flight.end(sending, Stage::Send);
        Ok(Dispatch { started, scatter, calls })
    }

    /// Runs the local shard, waits for the remote ones, and returns the sums `[rows, hidden]` of the routed experts.
    ///
    /// # Errors
    /// See [`ExpertsError`]. The dispatch is then lost, and a later one may be tried.
    pub fn collect(&mut self, dispatch: Dispatch, routed: &RoutedRows) -> Result<&[f32], ExpertsError> {
        let Dispatch { started, scatter, calls } = dispatch;
        let rows = routed.rows.len() / (routed.hidden * routed.activation.size());
        self.gather.start(rows, routed.hidden);
        // The local shard computes first: the others do so meanwhile.
        let computing = self.flight.begin();
        if let Some(local) = &mut self.local {
            let here = self.shards.iter().zip(scatter.groups()).find(|(s, _)| matches!(s, Shard::Local));
            let ran = match here {
                Some((_, group)) if !group.is_empty() => {
                    let began = Instant::now();
                    let ran = local.run(group, routed);
                    self.local_times.record_local(group.sources.len(), began.elapsed());
                    ran
                }
                _ => Ok(()),
            };
            if let Err(error) = ran {
                self.give_up();
                return Err(error);
            }
            self.flight.end(computing, Stage::Local);
        }
        let waiting = self.flight.begin();
        self.receive(&calls)?;
        self.flight.end(waiting, Stage::Wait);
        let gathering = self.flight.begin();
        for ((group, shard), call) in scatter.groups().iter().zip(&self.shards).zip(&calls) {
            match (shard, call, &self.local) {
                (Shard::Local, _, Some(local)) if !group.is_empty() => {
                    self.gather.add(&group.sources, local.sums());
                }
                (_, Some(call), _) => {
                    if let Some(index) = self.inbox.iter().position(|reply| reply.call() == *call) {
                        let reply = self.inbox.swap_remove(index);
                        self.gather.add(&group.sources, reply.sums());
                        let times = &mut self.link_times[reply.link()];
                        times.record(reply.rows(), reply.round_trip(), reply.times());
                        self.links.recycle(reply);
                    }
                }
                _ => {}
            }
        }
        self.flight.end(gathering, Stage::Gather);
        self.spare.push(scatter);
        self.times.record(started.elapsed());
        Ok(self.gather.sums())
    }

    /// Exchange times since the last call of this.
    pub fn take_times(&mut self) -> Option<ExchangeSummary> {
        self.times.take()
    }

    /// Every shard's present state; the times are those since the last call of this, or older ones while nothing ran.
    pub fn shard_status(&mut self) -> Vec<ShardStatus> {
        let links = self.links.shards().iter().zip(&mut self.link_times).map(|(info, times)| {
            let calls = times.calls;
            let recent = times.take();
            ShardStatus {
                shard: info.shard,
                range: info.range,
                address: info.address.to_string(),
                backend: info.backend.clone(),
                resident_bytes: info.resident_bytes,
                up: info.up,
                calls,
                round_trip_us: recent.map(|(round_trip, _)| round_trip),
                compute_us: recent.map(|(_, compute)| compute),
                percentiles: times.recent(),
                by_size: Arc::clone(&times.by_size),
            }
        });
        let local_calls = self.local_times.calls;
        let local_recent = self.local_times.take();
        let local = self.local.as_ref().map(|local| ShardStatus {
            shard: local.shard(),
            range: local.bank().range(),
            address: "this process".to_owned(),
            backend: local.bank().backend().to_owned(),
            resident_bytes: local.bank().resident_bytes(),
            up: true,
            calls: local_calls,
            // Nothing travels.
            round_trip_us: None,
            compute_us: local_recent.map(|(_, compute)| compute),
            percentiles: self.local_times.recent(),
            by_size: Arc::clone(&self.local_times.by_size),
        });
        let mut all: Vec<_> = links.chain(local).collect();
        all.sort_by_key(|status| status.shard);
        all
    }

    /// Looks after idle links, every second or so while nothing runs; the shards whose workers have gone, if any.
    pub fn progress(&mut self) -> Option<String> {
        self.links.progress();
        let gone = self.links.shards().iter().filter(|info| !info.up);
        let gone: Vec<String> = gone.map(|info| format!("{} ({})", info.shard, info.address)).collect();
        (!gone.is_empty()).then(|| format!("{}: worker is gone; start it again", gone.join(", ")))
    }

    /// Connects every lost shard again.
    ///
    /// # Errors
    /// The first shard that stays lost.
    pub fn reconnect(&mut self) -> Result<(), ShardError> {
        // A worker may have gone unnoticed while nothing was in flight.
        self.links.progress();
        let down: Vec<usize> =
            self.links.shards().iter().enumerate().filter(|(_, info)| !info.up).map(|(i, _)| i).collect();
        down.into_iter().try_for_each(|link| self.links.reconnect(link))
    }

    /// Blocks until every one of `calls` has its reply in the inbox.
    fn receive(&mut self, calls: &[Option<CallId>]) -> Result<(), ExpertsError> {
        while calls.iter().flatten().any(|call| self.inbox.iter().all(|reply| reply.call() != *call)) {
            match self.links.recv() {
                Ok(Some(reply)) => {
                    if self.flight.is_on() {
                        let (round_trip, times) = (reply.round_trip(), reply.times());
                        let shard = self.links.shards()[reply.link()].shard;
                        self.flight.call(&Call { shard, arrived: Instant::now(), round_trip, times });
                    }
                    self.inbox.push(reply);
                }
                Ok(None) => return Err(ExpertsError::Lost),
                Err(error) => {
                    self.give_up();
                    return Err(error.into());
                }
            }
        }
        Ok(())
    }

    /// Forgets every call in flight, so that no late reply is taken for another's. Where none is, nothing happens.
    pub fn give_up(&mut self) {
        self.links.abandon();
        self.inbox.clear();
    }
}
