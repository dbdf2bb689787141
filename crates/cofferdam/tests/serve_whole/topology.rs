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
    pub decodes: Vec<Running>,
    _prefill: Running,
    _dir: tempfile::TempDir,
}

impl Topology {
    /// Starts one part of each kind, with these words for each worker.
    pub fn start(model: &std::path::Path, prefill: &[&str], decode: &[&str]) -> Topology {
        Topology::with(model, prefill, &[decode])
    }

    /// Starts a prefill and several decodes.
    pub fn with(model: &std::path::Path, prefill: &[&str], decodes: &[&[&str]]) -> Topology {
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
        let decode = |(n, own): (usize, &&[&str])| {
            let fabric = format!("--fabric-dir={}", dir.path().display());
            let fabric = (!has(own, "--data-listen")).then_some(fabric);
            let words = listen(&format!("d{n}"), own).into_iter().chain(fabric);
            part("decode", &words.collect::<Vec<_>>(), own)
        };
        let decodes: Vec<_> = decodes.iter().enumerate().map(decode).collect();
        let at_d = decodes
            .iter()
            .map(|d| format!("--decode-at={}", d.part_addr()));
        let at_d: Vec<_> = at_d.collect();
        let p = part(
            "prefill",
            &[listen("p", prefill), at_d.clone()].concat(),
            prefill,
        );
        let at_p = format!("--prefill-at={}", p.part_addr());
        let at_all = [vec![at_p, "--port=0".into()], at_d].concat();
        let gateway = part("gateway", &at_all, &[]);
        Topology {
            api: gateway.api(),
            prefill: p.part_addr(),
            decode: decodes[0].part_addr(),
            certs,
            gateway,
            decodes,
            _prefill: p,
            _dir: dir,
        }
    }
}
