//! A word to systemd: units with `Type=notify` count as started when it has come (sd_notify(3)).

use std::ffi::OsStr;
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};

/// Where whoever started this wants to hear of it. The supervisor takes it from its parts: only
/// its own word counts.
pub(crate) const VARIABLE: &str = "NOTIFY_SOCKET";

/// Says that this process serves, if anybody wants to hear it. Failing is no reason to stop.
pub(crate) fn ready() {
    let Some(socket) = std::env::var_os(VARIABLE) else {
        return;
    };
    if let Err(error) = say(&socket, b"READY=1\n") {
        tracing::warn!(%error, "cannot say to {VARIABLE} that this is ready");
    }
}

/// A path, or `@name` without a file.
fn say(socket: &OsStr, word: &[u8]) -> io::Result<()> {
    let address = match socket.as_bytes() {
        [b'@', name @ ..] => SocketAddr::from_abstract_name(name)?,
        path => SocketAddr::from_pathname(OsStr::from_bytes(path))?,
    };
    UnixDatagram::unbound()?.send_to_addr(word, &address)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn heard(socket: &UnixDatagram) -> Vec<u8> {
        let mut word = [0; 64];
        let length = socket.recv(&mut word).unwrap();
        word[..length].to_vec()
    }

    #[test]
    fn a_path_and_an_abstract_name_are_heard() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("notify");
        let socket = UnixDatagram::bind(&path).unwrap();
        say(path.as_os_str(), b"READY=1\n").unwrap();
        assert_eq!(heard(&socket), b"READY=1\n");

        let name = format!("cofferdam-test-{}", std::process::id());
        let address = SocketAddr::from_abstract_name(&name).unwrap();
        let socket = UnixDatagram::bind_addr(&address).unwrap();
        say(OsStr::new(&format!("@{name}")), b"READY=1\n").unwrap();
        assert_eq!(heard(&socket), b"READY=1\n");
        assert!(say(OsStr::new("@nobody-is-here"), b"READY=1\n").is_err());
    }
}
