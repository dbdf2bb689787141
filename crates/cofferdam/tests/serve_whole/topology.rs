//! A topology that is started by hand: certificates, decode, prefill, gateway.

use crate::COFFERDAM;
use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::Command;
use testkit::Api;
use testkit::process::Running;

/// Parts of different sizes. Dropped, they end.
pub struct Topology {
    pub api: Api,
    pub prefill: String,
    pub decode: String,
    pub certs: PathBuf,
    pub gateway: Running,
    _workers: [Running; 2],
    _dir: tempfile::TempDir,
}

impl Topology {
    /// Starts one part of each kind, with these words for each worker.
    pub fn start(model: &std::path::Path, prefill: &[&str], decode: &[&str]) -> Topology {
        let private = Permissions::from_mode(0o700); // as control sockets need it
        let dir = tempfile::Builder::new()
            .permissions(private)
            .tempdir()
            .unwrap();
        let certs = dir.path().join("certs");
        let made = Command::new(COFFERDAM)
            .args(["certs", "new"])
            .arg(&certs)
            .output()
            .unwrap();
        assert!(made.status.success(), "{made:?}");
        let part = |kind: &str, more: &[String], own: &[&str]| {
            let (model, certs) = (model.display(), certs.display());
            let mut words = vec![kind.to_owned()];
            words.extend([format!("--model={model}"), format!("--certs={certs}")]);
            words.extend(own.iter().map(|word| (*word).to_owned()));
            words.extend_from_slice(more);
            Running::start(COFFERDAM, &words)
        };
        let socket = |name: &str| format!("unix:{}/{name}.sock", dir.path().display());
        let has = |own: &[&str], flag: &str| own.iter().any(|word| word.starts_with(flag));
        let listen = |name: &str, own: &[&str]| {
            let address = format!("--listen={}", socket(name));
            let address = (!has(own, "--listen")).then_some(address);
            address
                .into_iter()
                .chain(["--threads=1".to_owned()])
                .collect::<Vec<_>>()
        };
        let fabric = format!("--fabric-dir={}", dir.path().display());
        let fabric = (!has(decode, "--data-listen")).then_some(fabric);
        let words: Vec<String> = listen("d", decode).into_iter().chain(fabric).collect();
        let d = part("decode", &words, decode);
        let at_d = format!("--decode-at={}", d.part_addr());
        let p = part(
            "prefill",
            &[listen("p", prefill), vec![at_d.clone()]].concat(),
            prefill,
        );
        let at_p = format!("--prefill-at={}", p.part_addr());
        let gateway = part("gateway", &[at_p, at_d, "--port=0".into()], &[]);
        Topology {
            api: gateway.api(),
            prefill: p.part_addr(),
            decode: d.part_addr(),
            certs,
            gateway,
            _workers: [d, p],
            _dir: dir,
        }
    }
}
