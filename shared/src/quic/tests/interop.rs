//! These ends and quinn's own driver, with quinn's own settings: the same bytes, so the same sums.

use std::sync::Arc;
use std::time::Instant;

use quinn::{Endpoint, RecvStream, SendStream, ServerConfig, TokioRuntime};

use super::actors::{Worker, dial, runtime};
use crate::compute::{ActivationType, ExpertBatch};
use crate::ids::{ExpertId, ExpertRange, LayerId};
use crate::quic::{Identity, Peer, QuicLinks, QuicSettings, path, tls};
use crate::session::pair::{HIDDEN, ScaleBank, greeting};
use crate::session::{Caller, CallerEvent, CallerSettings, Links, Server};
use crate::wire::CallId;

/// One row, and as many as make megabytes.
const SIZES: [usize; 3] = [1, 300, 200_000];

/// Row r holds r + 1 and goes to expert r % 8.
struct Rows {
    counts: Vec<u16>,
    experts: Vec<ExpertId>,
    weights: Vec<f32>,
    rows: Vec<f32>,
}

impl Rows {
    fn new(rows: usize) -> Self {
        Self {
            counts: vec![1; rows],
            experts: (0..rows).map(|row| ExpertId((row % 8) as u16)).collect(),
            weights: vec![0.5; rows],
            rows: (0..rows * HIDDEN).map(|n| (n / HIDDEN + 1) as f32).collect(),
        }
    }

    fn batch(&self) -> ExpertBatch<'_> {
        ExpertBatch {
            layer: LayerId(1),
            activation: ActivationType::F32,
            hidden: HIDDEN,
            counts: &self.counts,
            experts: &self.experts,
            weights: &self.weights,
            rows: bytemuck::cast_slice(&self.rows),
        }
    }

    #[track_caller]
    fn check(&self, sums: &[f32]) {
        assert_eq!(sums.len(), self.rows.len());
        let expected = |at: usize| self.rows[at] * 0.5 * (at / HIDDEN % 8 + 1) as f32;
        assert!(sums.iter().enumerate().all(|(at, sum)| *sum == expected(at)));
    }
}

#[test]
fn a_quinn_coordinator_calls_this_worker() {
    let identity = Identity::generate().unwrap();
    let worker = Worker::start(0, ExpertRange::new(0, 8), &identity);
    runtime().block_on(async {
        let connection = dial(&identity, &worker.peer).await;
        let (mut send, mut recv) = connection.open_bi().await.unwrap();
        let mut caller = Caller::new(worker.peer.hello.clone(), CallerSettings::default(), Instant::now());
        assert!(matches!(event(&mut caller, &mut send, &mut recv).await, CallerEvent::Ready));
        for (n, size) in SIZES.into_iter().enumerate() {
            let rows = Rows::new(size);
            caller.call(CallId(n as u64), &rows.batch(), Instant::now()).unwrap();
            match event(&mut caller, &mut send, &mut recv).await {
                CallerEvent::Reply { reply, .. } => rows.check(reply.sums()),
                other => panic!("{other:?}"),
            }
        }
    });
}

async fn event(caller: &mut Caller, send: &mut SendStream, recv: &mut RecvStream) -> CallerEvent {
    loop {
        while let Some(bytes) = caller.poll_transmit() {
            send.write_chunk(bytes).await.unwrap();
        }
        if let Some(event) = caller.poll_event() {
            return event;
        }
        let chunk = recv.read_chunk(usize::MAX, true).await.unwrap().unwrap();
        caller.handle_bytes(&chunk.bytes, Instant::now());
    }
}

#[test]
fn this_coordinator_calls_a_quinn_worker() {
    let (identity, keys) = (Identity::generate().unwrap(), Identity::generate().unwrap());
    let (hello, welcome) = greeting(0, ExpertRange::new(0, 8));
    let runtime = runtime();
    let endpoint = {
        let _inside = runtime.enter();
        let crypto = tls::server(&keys, vec![identity.pin()]).unwrap();
        let config = ServerConfig::with_crypto(Arc::new(crypto));
        let socket = path::socket(([127, 0, 0, 1], 0).into()).unwrap();
        Endpoint::new(Default::default(), Some(config), socket, Arc::new(TokioRuntime)).unwrap()
    };
    let peer =
        Peer { address: endpoint.local_addr().unwrap().to_string(), pin: keys.pin(), hello, mtu: None };
    let worker = std::thread::spawn(move || {
        runtime.block_on(async {
            let connection = endpoint.accept().await.unwrap().await.unwrap();
            let (mut send, mut recv) = connection.accept_bi().await.unwrap();
            let mut server = Server::new(Arc::new(welcome), Instant::now());
            let mut bank = ScaleBank(ExpertRange::new(0, 8));
            while let Ok(Some(chunk)) = recv.read_chunk(usize::MAX, true).await {
                server.handle_bytes(&chunk.bytes, Instant::now());
                while server.run_next(&mut bank, Instant::now) {}
                while let Some(bytes) = server.poll_transmit() {
                    send.write_chunk(bytes).await.unwrap();
                }
            }
            server.answered()
        })
    });
    let mut links = QuicLinks::connect(identity, vec![peer], QuicSettings::default()).unwrap();
    for size in SIZES {
        let rows = Rows::new(size);
        links.send(0, &rows.batch()).unwrap();
        let reply = links.recv().unwrap().unwrap();
        rows.check(reply.sums());
        links.recycle(reply);
    }
    drop(links);
    assert_eq!(worker.join().unwrap(), SIZES.len() as u64);
}
