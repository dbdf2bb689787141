//! What `serve` starts: the parts, in order, and the words that each is started with.

use crate::args::{CERTIFICATE_DAYS, Fabric, Serve, word};
use crate::exit::Failure;

use crate::runtime_dir::RuntimeDir;
use crate::supervisor::Part;
use anyhow::{Context, anyhow};
use std::ffi::{OsStr, OsString};
use std::fmt::{Display, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// This very program, also after its file was replaced or removed: a part that is restarted after
/// an upgrade must not be of another version than its peers.
const OURSELVES: &str = "/proc/self/exe";

/// Where everything of one serving is.
pub(crate) struct Plan<'a> {
    settings: &'a Serve,
    weights: PathBuf,
    dir: PathBuf,
    certs: PathBuf,
    keys: Option<PathBuf>,
}

impl<'a> Plan<'a> {
    /// Makes certificates and what else the parts find in `dir`.
    pub(crate) fn new(
        settings: &'a Serve,
        weights: &Path,
        dir: &RuntimeDir,
    ) -> Result<Plan<'a>, Failure> {
        let keys = key_file(settings, dir)?;
        let certs = dir.path().join("certs");
        let validity = wire::control::certs::Validity::days(CERTIFICATE_DAYS);
        let made = wire::control::certs::new_cluster(&certs, validity);
        made.context("cannot make certificates")
            .map_err(Failure::found)?;
        let weights = std::path::absolute(weights).map_err(Failure::usage)?;
        if let Some(trace) = &settings.trace {
            let made = std::fs::create_dir_all(trace);
            made.with_context(|| format!("--trace {}", trace.display()))
                .map_err(Failure::usage)?;
        }
        let dir = dir.path().to_owned();
        Ok(Plan {
            settings,
            weights,
            dir,
            certs,
            keys,
        })
    }

    /// The file of API keys, if there are any.
    pub(crate) fn keys(&self) -> Option<&Path> {
        self.keys.as_deref()
    }

    /// Workers one after another, each in a stage of its own, so that each compares its pool
    /// with the memory that the one before it has left; the gateway last.
    pub(crate) fn parts(&self) -> Vec<Part> {
        let decodes = 0..self.settings.decode;
        let decodes = decodes.map(|i| (format!("decode-{i}"), "decode", self.decode(i)));
        let prefills = 0..self.settings.prefill;
        let prefills = prefills.map(|i| (format!("prefill-{i}"), "prefill", self.prefill(i)));
        let gateway = ("gateway".to_owned(), "gateway", self.gateway());
        let parts = decodes.chain(prefills).chain([gateway]);
        let part = |(stage, (name, kind, words)): (u32, (String, &'static str, Words))| {
            let trace = self.settings.trace.clone();
            let owners = self.settings.owners.clone();
            let file = format!("{name}.");
            let command = Box::new(move |life| {
                let mut words = words.clone();
                // A life of its own has a trace of its own.
                let trace = trace
                    .as_ref()
                    .map(|dir| dir.join(format!("{file}{life}.trace")));
                words.maybe_path("trace", trace.as_deref());
                words.maybe_path("owners", owners.as_deref());
                command(words)
            });
            Part {
                name,
                kind,
                stage,
                command,
            }
        };
        (0..).zip(parts).map(part).collect()
    }

    fn address(&self, role: &str, index: u32) -> String {
        format!("unix:{}/{role}-{index}.sock", self.dir.display())
    }

    fn decode(&self, index: u32) -> Words {
        let mut words = self.part("decode");
        words.flag("listen", self.address("decode", index));
        match self.settings.fabric {
            Fabric::SharedMemory => words.path("fabric-dir", &self.dir),
            Fabric::Tcp => words.flag("data-listen", "tcp:127.0.0.1:0"),
        }
        self.add_engine(&mut words);
        words
    }

    fn prefill(&self, index: u32) -> Words {
        let mut words = self.part("prefill");
        words.flag("listen", self.address("prefill", index));
        for decode in 0..self.settings.decode {
            words.flag("decode-at", self.address("decode", decode));
        }
        self.add_engine(&mut words);
        words
    }

    fn gateway(&self) -> Words {
        let api = &self.settings.api;
        let mut words = self.part("gateway");
        for prefill in 0..self.settings.prefill {
            words.flag("prefill-at", self.address("prefill", prefill));
        }
        for decode in 0..self.settings.decode {
            words.flag("decode-at", self.address("decode", decode));
        }
        words.flag("host", api.host.0);
        words.flag("port", api.port);
        words.maybe("served-model-name", api.served_model_name.as_ref());
        words.maybe_path("api-keys", self.keys.as_deref());
        words.maybe("rpm", api.rpm);
        words.maybe("tpm", api.tpm);
        words.maybe_path("tls-cert", api.tls_cert.as_deref());
        words.maybe_path("tls-key", api.tls_key.as_deref());
        words.maybe_path("tls-client-ca", api.tls_client_ca.as_deref());
        words.maybe_path("access-log", api.access_log.as_deref());
        words.maybe("otlp-endpoint", api.otlp_endpoint.as_deref());
        words.maybe_path("require-evidence", api.require_evidence.as_deref());
        words.maybe_path("evidence-pub", api.evidence_pub.as_deref());
        for operator in &api.operator {
            words.flag("operator", operator);
        }
        self.add_on_call(&mut words);
        for origin in &api.allow_origin {
            words.flag("allow-origin", origin);
        }
        let deadline = api.request_deadline.as_millis();
        words.flag("request-deadline", format_args!("{deadline}ms"));
        let silence = api.silence_deadline.as_millis();
        words.flag("silence-deadline", format_args!("{silence}ms"));
        words
    }

    fn add_on_call(&self, words: &mut Words) {
        let on_call = &self.settings.api.on_call;
        words.maybe_path("incidents", on_call.incidents.as_deref());
        words.maybe_path("incident-policy", on_call.incident_policy.as_deref());
        words.flag("incidents-mib", on_call.incidents_mib);
        words.flag("incidents-days", on_call.incidents_days);
        // Named alone it would want a journal.
        if on_call.canaries {
            words.flag("canaries", true);
        }
        let every = on_call.canary_every.as_millis();
        words.flag("canary-every", format_args!("{every}ms"));
        words.flag("canary-tokens", on_call.canary_tokens);
        words.maybe("canary-percent", on_call.canary_percent);
        words.maybe("canaries-at", on_call.canaries_at.as_ref());
        words.maybe_path("canaries-ca", on_call.canaries_ca.as_deref());
        words.maybe("admin", on_call.admin);
        words.maybe_path("admin-keys", on_call.admin_keys.as_deref());
    }

    fn add_engine(&self, words: &mut Words) {
        let engine = &self.settings.engine;
        words.maybe("pool-tokens", engine.pool_tokens);
        words.flag("page-size", engine.page_size);
        words.maybe("max-context", engine.max_context);
        words.maybe("threads", engine.threads);
        words.flag("numeric", word(engine.numeric));
        words.flag("scrub", engine.scrub);
        for (name, value) in self.settings.waits.typed() {
            words.flag(name, value);
        }
    }

    /// The words that every part begins with.
    fn part(&self, command: &str) -> Words {
        let common = &self.settings.common;
        let mut words = Words(vec![command.into()]);
        words.path("model", &self.weights);
        words.path("certs", &self.certs);
        words.flag("log-format", word(common.log_format));
        words.flag("drain-seconds", common.drain_seconds);
        words.maybe_path("audit-log", common.audit_log.as_deref());
        words.flag("until-stdin-closes", true);
        words
    }
}

/// Keys that were given as flags go into a file: other users can see what a part is started with.
/// Where the keys are that clients must have, if there are any.
pub(crate) fn key_file(settings: &Serve, dir: &RuntimeDir) -> Result<Option<PathBuf>, Failure> {
    let (file, keys) = (&settings.api.api_keys, &settings.api_key);
    if keys.is_empty() {
        return Ok(file.clone());
    }
    if file.is_some() {
        let both = "--api-keys and --api-key are both set (flag, variable or file): keep one";
        return Err(Failure::usage(anyhow!(both)));
    }
    let mut lines = String::new();
    for (number, key) in (1..).zip(keys) {
        writeln!(lines, "key-{number} {key}").expect("a string takes everything");
    }
    dir.write_private("api-keys", &lines)
        .map(Some)
        .map_err(Failure::found)
}

/// Words of a command line, each flag in one word: a value may begin with a dash.
#[derive(Clone)]
struct Words(Vec<OsString>);

impl Words {
    fn flag(&mut self, name: &str, value: impl Display) {
        self.0.push(format!("--{name}={value}").into());
    }

    fn maybe(&mut self, name: &str, value: Option<impl Display>) {
        if let Some(value) = value {
            self.flag(name, value);
        }
    }

    fn path(&mut self, name: &str, path: impl AsRef<OsStr>) {
        let mut word = OsString::from(format!("--{name}="));
        word.push(path.as_ref());
        self.0.push(word);
    }

    fn maybe_path(&mut self, name: &str, path: Option<&Path>) {
        if let Some(path) = path {
            self.path(name, path);
        }
    }
}

/// A part is told everything by words: variables meant for `serve` must not reach it, where the
/// same name may mean something else.
fn command(words: Words) -> Command {
    let mut command = Command::new(OURSELVES);
    command.arg0("cofferdam").args(words.0);
    let names = std::env::vars_os().map(|(name, _)| name);
    for name in names.filter(|name| name.to_string_lossy().starts_with("COFFERDAM_")) {
        command.env_remove(name);
    }
    command
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::{Command as Typed, Decode, Gateway, Prefill};
    use crate::config;

    fn parse(words: impl IntoIterator<Item = OsString>) -> Typed {
        config::parse(std::iter::once("cofferdam".into()).chain(words))
            .unwrap()
            .command
    }

    fn serve(words: &[&str]) -> Serve {
        let words = ["serve"].iter().chain(words).map(OsString::from);
        let Typed::Serve(serve) = parse(words) else {
            panic!("not serve")
        };
        *serve
    }

    /// Every part with what it is told in its third life, as the part itself understands it.
    fn told(settings: &Serve, dir: &RuntimeDir) -> Vec<(String, Typed)> {
        let plan = Plan::new(settings, Path::new("w.gguf"), dir).unwrap();
        let understood = |part: Part| {
            let command = (part.command)(3);
            (part.name, parse(command.get_args().map(OsString::from)))
        };
        plan.parts().into_iter().map(understood).collect()
    }

    fn decode(typed: &Typed) -> &Decode {
        let Typed::Decode(it) = typed else {
            panic!("{typed:?}")
        };
        it
    }

    fn prefill(typed: &Typed) -> &Prefill {
        let Typed::Prefill(it) = typed else {
            panic!("{typed:?}")
        };
        it
    }

    fn gateway(typed: &Typed) -> &Gateway {
        let Typed::Gateway(it) = typed else {
            panic!("{typed:?}")
        };
        it
    }

    #[test]
    fn every_part_is_told_everything() {
        let settings = serve(&[
            "--prefill=2",
            "--decode=2",
            "--pool-tokens=4096",
            "--max-context=1024",
            "--scrub",
            "--numeric=exact",
            "--threads=3",
            "--page-size=32",
            "--queue-deadline=2s",
            "--cache-ttl=90s",
            "--tenant-tokens=4096",
            "--request-deadline=3m",
            "--rpm=60",
            "--tpm=9000",
            "--tls-cert=c.pem",
            "--tls-key=c.key",
            "--tls-client-ca=ca.pem",
            "--allow-origin=https://app.example.org,http://localhost:3000",
            "--allow-origin=tauri://localhost",
            "--audit-log=a.log",
            "--incidents=i.db",
            "--incident-policy=p.toml",
            "--incidents-mib=64",
            "--incidents-days=7",
            "--canaries",
            "--canary-every=5s",
            "--canary-tokens=1000",
            "--canary-percent=2",
            "--canaries-at=https://here:1",
            "--canaries-ca=ca.pem",
            "--admin=127.0.0.1:8090",
            "--admin-keys=admin.keys",
            "--otlp-endpoint=http://127.0.0.1:4318",
            "--served-model-name=-m",
            "--drain-seconds=7",
            "--log-format=json",
            "--port=0",
            "--host=::1",
        ]);
        let base = tempfile::tempdir().unwrap();
        let dir = RuntimeDir::new_in(base.path()).unwrap();
        let parts = told(&settings, &dir);
        let names: Vec<_> = parts.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(
            names,
            ["decode-0", "decode-1", "prefill-0", "prefill-1", "gateway"]
        );
        let (second, worker) = (decode(&parts[1].1), prefill(&parts[3].1));
        let gateway = gateway(&parts[4].1);
        assert_eq!(
            (&second.engine, &worker.engine),
            (&settings.engine, &settings.engine)
        );
        assert_eq!(gateway.api, settings.api);
        assert_eq!(
            (&second.waits, &worker.waits),
            (&settings.waits, &settings.waits)
        );
        for (common, part) in [
            (&second.common, &second.part),
            (&worker.common, &worker.part),
            (&gateway.common, &gateway.part),
        ] {
            assert!(part.until_stdin_closes && part.trace.is_none());
            assert!(part.certs.as_ref().unwrap().join("ca.pem").exists());
            assert!(common.model.as_ref().unwrap().is_absolute());
            assert_eq!(common.drain_seconds, 7);
            assert_eq!(common.audit_log, settings.common.audit_log);
            assert_eq!(common.log_format, settings.common.log_format);
        }
        // Who dials finds who listens.
        assert_eq!(worker.decode_at.get(1), second.listen.as_ref());
        assert_eq!(gateway.decode_at, worker.decode_at);
        assert_eq!(gateway.prefill_at.get(1), worker.listen.as_ref());
        assert_eq!(second.fabric_dir.as_deref(), Some(dir.path()));
    }

    #[test]
    fn over_tcp_decode_has_a_data_port_that_other_hosts_do_not_reach() {
        let base = tempfile::tempdir().unwrap();
        let dir = RuntimeDir::new_in(base.path()).unwrap();
        let parts = told(&serve(&["--fabric=tcp"]), &dir);
        let decode = decode(&parts[0].1);
        assert!(decode.fabric_dir.is_none() && decode.data_advertise.is_none());
        let at = decode.data_listen.unwrap();
        assert!(at.ip().is_loopback() && at.port() == 0, "{at}");
    }

    #[test]
    fn keys_are_not_for_the_process_list() {
        let settings = serve(&["--api-key=secret,other"]);
        let base = tempfile::tempdir().unwrap();
        let dir = RuntimeDir::new_in(base.path()).unwrap();
        let parts = told(&settings, &dir);
        assert!(
            parts
                .iter()
                .all(|(_, typed)| !format!("{typed:?}").contains("secret"))
        );
        let file = gateway(&parts[2].1).api.api_keys.clone().unwrap();
        let text = std::fs::read_to_string(file).unwrap();
        assert_eq!(
            text, "key-1 secret\nkey-2 other\n",
            "each key is a tenant of its own"
        );

        let both = serve(&["--api-key=secret", "--api-keys=file"]);
        let failure = Plan::new(&both, Path::new("w.gguf"), &dir).err().unwrap();
        assert!(failure.to_string().contains("keep one"), "{failure}");
    }

    #[test]
    fn every_life_has_a_trace_of_its_own() {
        let base = tempfile::tempdir().unwrap();
        let dir = RuntimeDir::new_in(base.path()).unwrap();
        let traces = base.path().join("traces");
        let flag = format!("--trace={}", traces.display());
        let parts = told(&serve(&[&flag]), &dir);
        assert!(traces.is_dir());
        let trace = |part: &crate::args::Part| part.trace.clone().unwrap();
        assert_eq!(
            trace(&decode(&parts[0].1).part),
            traces.join("decode-0.3.trace")
        );
        assert_eq!(
            trace(&gateway(&parts[2].1).part),
            traces.join("gateway.3.trace")
        );
    }
}
