//! Hostile clients of a real server: refused within limits, memory bounded, service unharmed.

use crate::{rest, serve, small};
use serde_json::json;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;
use testkit::Api;
use testkit::crowd::{COMPLETIONS, prompt};

/// Resident memory of a process, in MiB.
fn resident(pid: u32) -> usize {
    testkit::memory::resident(pid).unwrap() >> 20
}

fn connect(api: &Api) -> TcpStream {
    let socket = TcpStream::connect(&api.addr).unwrap();
    socket
        .set_read_timeout(Some(Duration::from_secs(60)))
        .unwrap();
    socket
}

/// Sends bytes as far as they are taken, and gives the status of the answer; none if it was closed.
fn status(api: &Api, bytes: &[u8]) -> Option<u16> {
    let mut socket = connect(api);
    let _ = socket.write_all(bytes); // it may hang up before the end
    let mut head = [0; 12];
    socket.read_exact(&mut head).ok()?;
    std::str::from_utf8(&head[9..12]).ok()?.parse().ok()
}

fn post(headers: &str, body: &[u8]) -> Vec<u8> {
    let head = format!(
        "POST {COMPLETIONS} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n{headers}\r\n"
    );
    [head.as_bytes(), body].concat()
}

fn whole(body: &[u8]) -> Vec<u8> {
    post(&format!("content-length: {}\r\n", body.len()), body)
}

#[test]
fn hostile_clients_are_refused_and_the_service_goes_on() {
    let model = small::model(1024);
    let (running, api) = serve(&model, &[]);
    let good = json!({
        "prompt": prompt(1, 100, 16, 3), "max_tokens": 8, "temperature": 0, "logprobs": 1,
    });
    let expected = api.post(COMPLETIONS, &good).good()["choices"].clone();
    let gateway = running.part("gateway");
    let before = resident(gateway);

    // Idle connections, and heads that come one byte at a time, beside everything that follows.
    let idle: Vec<TcpStream> = (0..950).map(|_| connect(&api)).collect();
    let mut slow: Vec<TcpStream> = (0..50).map(|_| connect(&api)).collect();
    for (n, socket) in slow.iter_mut().enumerate() {
        let _ = socket.write_all(&b"POST /v1/completions HTTP/1.1\r\nhost: x\r\n"[..20 + n % 20]);
    }
    let serves = |what: &str| {
        let answer = api.post(COMPLETIONS, &good).good();
        assert_eq!(answer["choices"], expected, "while there are {what}");
    };
    serves("1000 idle and slow connections");

    let big = vec![b' '; 50 << 20];
    assert_eq!(status(&api, &whole(&big)), Some(413), "50 MB, declared");
    let mut chunked = post("transfer-encoding: chunked\r\n", b"");
    for chunk in big.chunks(1 << 20) {
        chunked.extend(format!("{:x}\r\n", chunk.len()).bytes());
        chunked.extend(chunk);
        chunked.extend(b"\r\n");
    }
    // Refused in the middle of it: the answer or the end, but never taken.
    assert!(
        matches!(status(&api, &chunked), Some(413) | None),
        "50 MB in chunks"
    );
    drop((big, chunked));
    serves("large bodies");

    for body in [
        &b"{\"prompt\": \"\xff\xfe\xf0\x28\"}"[..],
        b"\xc3\x28",
        &[
            b"{\"prompt\": ".as_slice(),
            &[b'['; 100_000],
            &[b']'; 100_000],
            b"}",
        ]
        .concat(),
        &[&[b'{'; 100_000][..], b""].concat(),
        b"\"prompt\"",
        b"",
    ] {
        let seen = status(&api, &whole(body));
        assert_eq!(
            seen,
            Some(400),
            "{:?}",
            String::from_utf8_lossy(&body[..body.len().min(40)])
        );
    }
    serves("bodies that are no requests");

    let many: String = (0..5000).map(|n| format!("x-{n}: y\r\n")).collect();
    let long = format!("x: {}\r\n", "y".repeat(1 << 20));
    for headers in [many, long] {
        let seen = status(&api, &post(&headers, b""));
        assert!(matches!(seen, Some(431 | 400) | None), "{seen:?}");
    }
    serves("floods of headers");

    let grown = resident(gateway).saturating_sub(before);
    assert!(grown < 128, "the gateway has grown by {grown} MiB");
    drop((idle, slow));
    rest(&api);
    let ended = running.stop();
    assert!(ended.status.success() && ended.left.is_empty(), "{ended:?}");
}
