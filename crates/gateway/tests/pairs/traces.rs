//! One running trace, one truth: what the engine's machine did under real sockets, timers and
//! disturbances, the machine alone does again.

use std::time::{Duration, Instant};

use crate::support::*;
use gateway::engine::{Code, Engine, Job};
use gateway::pairs::{Config, Pairs, StartError};
use handoff::{Ending, Failure, Finish};

#[tokio::test]
async fn the_trace_of_a_disturbed_run_replays_byte_for_byte() {
    let mut site = Site::new(1, 1).await;
    let path = site.path("gateway.trace");
    let config = Config {
        trace: Some(path.clone()),
        ..site.config()
    };
    let (engine, mut prefill, mut decode) = site.pair_with(config.clone()).await;

    // An answer, an edge rejection, a retry, a deadline, a client that leaves, a lost worker.
    let mut answered = engine.submit(job(&[1, 2], 2)).unwrap();
    let attempt = taken(&mut prefill, &mut decode).await;
    decode.answer(attempt, &[6, 7]);
    assert_eq!(ids(&rest(&mut answered).await, 0), [6, 7]);
    prefill.withdrawn().await;
    let mut long = engine.submit(job(&[1; 1024], 1)).unwrap();
    assert_eq!(failed(&mut long).await.1.code, Code::ContextLengthExceeded);
    let deadline = Instant::now() + Duration::from_secs(1);
    let mut late = engine
        .submit(Job {
            deadline,
            ..job(&[3], 4)
        })
        .unwrap();
    let first = taken(&mut prefill, &mut decode).await;
    prefill.ended(first, Ending::Failed(Failure::Compute));
    assert_eq!(decode.cancelled().await, first);
    decode.ended(first, Ending::Cancelled);
    assert_eq!(prefill.withdrawn().await, first);
    let second = taken(&mut prefill, &mut decode).await;
    decode.committed(second);
    assert_eq!(failed(&mut late).await.1.code, Code::DecodeTimeout);
    decode.cancelled().await;
    prefill.withdrawn().await;
    drop(engine.submit(job(&[4], 4)).unwrap());
    let mut lost = engine.submit(job(&[5], 4)).unwrap();
    let attempt = loop {
        // The one whose client left may have been taken back before or after it was announced.
        match decode.next().await {
            handoff::GatewayToDecode::Expect { attempt, spec, .. } if spec.tokens == [5] => {
                break attempt;
            }
            _ => {}
        }
    };
    decode.expecting(attempt);
    prefill.attempt().await;
    decode.committed(attempt);
    decode.token(attempt, 0, 9, Some(Finish::Stop));
    drop(decode);
    let (events, fault) = failed(&mut lost).await;
    assert_eq!((ids(&events, 0), fault.code), (vec![9], Code::DecodeFailed));
    soon(engine.end()).await.unwrap();

    let replayed = wire::trace::replay(&path).unwrap();
    let wire::trace::Header::Gateway { hello, .. } = &replayed.header else {
        panic!("{:?}", replayed.header)
    };
    assert_eq!(hello.epoch, engine.epoch());
    assert!(
        replayed.inputs > 20 && replayed.effect_bytes > 200,
        "{replayed:?}"
    );
    assert!(!replayed.torn);

    // A trace is evidence: it is never written over.
    assert!(matches!(Pairs::start(config), Err(StartError::Trace(_))));
}
