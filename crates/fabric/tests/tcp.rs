//! TCP keeps the contract of a fabric, with the certificates that the product uses.

use std::path::PathBuf;
use std::process::Command;

mod contract;

use contract::Fabric;
use fabric::tcp::{DataDeadlines, Listen, TcpReceiver, TcpSender};
use fabric::{Limits, Receiver, Sender, WriteEnding};
use pages::{FenceMint, WriterLife};
use wire::control::certs::{Validity, new_cluster};
use wire::control::{Identity, Role};

/// Tells a writer's process where the certificates are.
const CERTS: &str = "COFFERDAM_TEST_CERTS";

struct Tcp {
    certs: PathBuf,
}

impl Tcp {
    fn identity(&self, role: Role) -> Identity {
        Identity::load(&self.certs, role).unwrap()
    }
}

impl Fabric for Tcp {
    fn receiver(&self, mint: FenceMint) -> Box<dyn Receiver> {
        let limits = Limits {
            bytes_max: 64 << 20,
        };
        let tls = self.identity(Role::Decode);
        let listen = Listen {
            at: ([127, 0, 0, 1], 0).into(),
            advertised: None,
            tls: tls.data_listener(&[Role::Prefill]).unwrap(),
        };
        Box::new(TcpReceiver::new(listen, mint, limits).unwrap())
    }

    fn sender(&self, life: WriterLife) -> Box<dyn Sender> {
        let tls = self.identity(Role::Prefill);
        let tls = tls.data_dialler(&[Role::Decode]).unwrap();
        Box::new(TcpSender::new(life, tls, DataDeadlines::default()))
    }

    fn ending_after_a_fence(&self) -> WriteEnding {
        WriteEnding::Failed
    }

    fn prepare(&self, writer: &mut Command) {
        writer.env(CERTS, &self.certs);
    }
}

fn main() {
    if let Some(certs) = std::env::var_os(CERTS) {
        let certs = certs.into();
        return contract::main(&Tcp { certs });
    }
    let dir = tempfile::tempdir().unwrap();
    let certs = dir.path().join("certs");
    new_cluster(&certs, Validity::days(1)).unwrap();
    let passed = contract::run(&Tcp { certs });
    drop(dir);
    std::process::exit(if passed { 0 } else { 101 });
}
