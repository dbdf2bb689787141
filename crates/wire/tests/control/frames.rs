//! Frames between two authenticated peers: order, limits and ends.

use crate::cluster::{Cluster, raw_prefill, small};
use tokio::io::AsyncWriteExt;
use wire::control::{Addr, ReceiveError, Role, SendError};

#[tokio::test]
async fn frames_arrive_in_order_over_unix_and_tcp() {
    let cluster = Cluster::new();
    for addr in [cluster.unix(), Addr::Tcp("127.0.0.1:0".parse().unwrap())] {
        let (mut p, mut d) = cluster.pair(&addr, &small()).await;
        assert_eq!((p.peer.role, d.peer.role), (Role::Decode, Role::Prefill));
        assert_ne!(p.peer.fingerprint, d.peer.fingerprint);

        let bodies: Vec<Vec<u8>> = (0..200u32)
            .map(|i| vec![i as u8; (i * 331 % 65_536) as usize])
            .collect();
        let sent = bodies.clone();
        let sender = p.sender.clone();
        let sending = tokio::spawn(async move {
            for body in sent {
                sender.send_when_free(body).await.unwrap();
            }
        });
        for body in &bodies {
            assert_eq!(d.receiver.recv().await.unwrap().unwrap(), body);
        }
        sending.await.unwrap();

        d.sender.send(&b"answer"[..]).unwrap();
        assert_eq!(p.receiver.recv().await.unwrap().unwrap(), &b"answer"[..]);
        drop(p.sender); // the last one: closed in order, after what was queued
        assert!(d.receiver.recv().await.unwrap().is_none());
    }
}

#[tokio::test]
async fn what_is_queued_is_still_sent_when_the_sender_is_dropped() {
    let cluster = Cluster::new();
    let (p, mut d) = cluster.pair(&cluster.unix(), &small()).await;
    for i in 0..8u8 {
        p.sender.send(vec![i; 1000]).unwrap();
    }
    drop(p);
    for i in 0..8u8 {
        assert_eq!(d.receiver.recv().await.unwrap().unwrap(), vec![i; 1000]);
    }
    assert!(d.receiver.recv().await.unwrap().is_none());
}

#[tokio::test]
async fn a_slow_peer_is_a_bounded_error_and_loses_nothing_that_was_accepted() {
    let cluster = Cluster::new();
    let (p, mut d) = cluster.pair(&cluster.unix(), &small()).await;
    // Small frames meet the limit of frames, large ones the limit of bytes. Nothing runs between
    // two sends on this one thread, so the numbers are exact.
    for (bytes, fit) in [(10, 8), (64 << 10, 4)] {
        for i in 0..fit {
            p.sender.send(vec![i as u8; bytes]).unwrap();
        }
        for _ in 0..1000 {
            assert_eq!(p.sender.send(vec![99; bytes]), Err(SendError::Full));
        }
        for i in 0..fit {
            assert_eq!(
                d.receiver.recv().await.unwrap().unwrap(),
                vec![i as u8; bytes]
            );
        }
        // The queue's room is back once its frames are written, not before.
        p.sender.send_when_free(&b"end"[..]).await.unwrap();
        assert_eq!(d.receiver.recv().await.unwrap().unwrap(), &b"end"[..]);
    }
}

#[tokio::test]
async fn a_frame_above_the_limit_is_refused_on_both_sides() {
    let cluster = Cluster::new();
    let mut listener = cluster.decode_listens(&cluster.unix(), &small()).await;
    let (certs, addr) = (cluster.certs(), cluster.unix());
    let (mut raw, d) = tokio::join!(raw_prefill(&certs, &addr), listener.accept());
    let mut d = d.unwrap();
    let (len, max) = (small().frame_bytes_max + 1, small().frame_bytes_max);
    let refused = d.sender.send(vec![0; len]);
    assert_eq!(refused, Err(SendError::TooLarge { len, max }));

    raw.write_all(&[0xff; 4]).await.unwrap(); // announces 4 GiB and sends none of them
    raw.flush().await.unwrap();
    match d.receiver.recv().await {
        Err(ReceiveError::TooLarge {
            len: 0xffff_ffff,
            max: 65_536,
        }) => {}
        other => panic!("{other:?}"),
    }
    // The connection is over in both directions.
    assert_eq!(d.sender.send(&b"x"[..]), Err(SendError::Closed));
    assert!(matches!(d.receiver.recv().await, Err(ReceiveError::Ended)));
}

#[tokio::test]
async fn half_a_frame_is_cut_and_not_delivered() {
    let cluster = Cluster::new();
    let mut listener = cluster.decode_listens(&cluster.unix(), &small()).await;
    for close_in_order in [true, false] {
        let (certs, addr) = (cluster.certs(), cluster.unix());
        let (mut raw, d) = tokio::join!(raw_prefill(&certs, &addr), listener.accept());
        let mut d = d.unwrap();
        raw.write_all(&[0, 0, 0, 2, b'o', b'k', 0, 0, 0, 9, b'h', b'a', b'l', b'f'])
            .await
            .unwrap();
        raw.flush().await.unwrap();
        if close_in_order {
            raw.shutdown().await.unwrap();
        }
        drop(raw);
        assert_eq!(d.receiver.recv().await.unwrap().unwrap(), &b"ok"[..]);
        assert!(matches!(d.receiver.recv().await, Err(ReceiveError::Cut(8))));
    }
}

#[tokio::test]
async fn a_cut_between_frames_is_not_an_orderly_end() {
    let cluster = Cluster::new();
    let mut listener = cluster.decode_listens(&cluster.unix(), &small()).await;
    let (certs, addr) = (cluster.certs(), cluster.unix());
    let (raw, d) = tokio::join!(raw_prefill(&certs, &addr), listener.accept());
    drop(raw); // as when a process is killed: the socket closes, TLS does not
    assert!(matches!(
        d.unwrap().receiver.recv().await,
        Err(ReceiveError::Cut(0))
    ));
}

#[tokio::test]
async fn an_abort_ends_both_halves_and_discards_the_queue() {
    let cluster = Cluster::new();
    let (mut p, mut d) = cluster.pair(&cluster.unix(), &small()).await;
    for _ in 0..8 {
        p.sender.send(vec![1; 1000]).unwrap();
    }
    p.sender.abort();
    assert_eq!(p.sender.send(&b"x"[..]), Err(SendError::Closed));
    assert!(matches!(p.receiver.recv().await, Err(ReceiveError::Ended)));
    drop(p);
    // None of the queued frames was written: nothing had run in between.
    assert!(matches!(d.receiver.recv().await, Err(ReceiveError::Cut(0))));
}

#[tokio::test]
async fn receiving_may_be_cancelled_at_any_point_of_a_frame() {
    let cluster = Cluster::new();
    let mut listener = cluster.decode_listens(&cluster.unix(), &small()).await;
    let (certs, addr) = (cluster.certs(), cluster.unix());
    let (mut raw, d) = tokio::join!(raw_prefill(&certs, &addr), listener.accept());
    let mut d = d.unwrap();
    for byte in [0, 0, 0, 3, b'a', b'b'] {
        raw.write_all(&[byte]).await.unwrap();
        raw.flush().await.unwrap();
        tokio::select! {
            biased;
            frame = d.receiver.recv() => panic!("{frame:?}"),
            () = tokio::task::yield_now() => {}
        }
    }
    raw.write_all(b"c").await.unwrap();
    raw.flush().await.unwrap();
    assert_eq!(d.receiver.recv().await.unwrap().unwrap(), &b"abc"[..]);
}
