//! `serve`: gateway, prefill and decode as processes of their own, under one supervisor.

use crate::args::LogFormat;
use crate::commands::{Stop, weights};
use crate::exit::{Exit, Failure};
use crate::logs::{self, line_of_part};
use crate::parts;
use crate::runtime_dir::RuntimeDir;
use crate::settings::{Engine, Keys, Serve};
use crate::supervisor::{Ending, Limits, Part, Ready, Supervised, supervise};
use anyhow::{Context, anyhow};
use std::path::{Path, PathBuf};
use std::process::Command;
use tokio::sync::mpsc;

/// Runs until it is stopped or cannot go on.
pub fn run(settings: Serve) -> Result<(), Failure> {
    logs::start(settings.log_format);
    let weights = weights(settings.model.as_deref())?;
    // One thread, and it is this one: see `supervise`.
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    let runtime = runtime
        .context("cannot start the async runtime")
        .map_err(Failure::found)?;
    if settings.in_process {
        return runtime.block_on(async {
            let mut stop = Stop::new()?;
            parts::in_process(settings, &weights, async move { stop.next().await }).await
        });
    }
    let dir = RuntimeDir::new().map_err(Failure::found)?;
    let result = runtime.block_on(supervised(&settings, &weights, &dir));
    // All processes are reaped: nobody uses it any more.
    let removed = dir.remove().map_err(Failure::found);
    result.and(removed)
}

async fn supervised(settings: &Serve, weights: &Path, dir: &RuntimeDir) -> Result<(), Failure> {
    let mut stop = Stop::new()?;
    let parts = Plan::new(settings, weights, dir)
        .map_err(Failure::found)?
        .parts();
    let limits = Limits {
        drain: settings.drain,
        ..Limits::default()
    };
    let (asked, mut stops) = mpsc::channel(1);
    let listen = async {
        loop {
            stop.next().await;
            tracing::info!(
                "stopping: running requests get {} s",
                settings.drain.as_secs()
            );
            let _ = asked.try_send(()); // one that waits already says the same
        }
    };
    let mut console = Console {
        format: settings.log_format,
    };
    let ending = tokio::select! {
        ending = supervise(&parts, limits, &mut stops, &mut console) => ending,
        () = listen => unreachable!("it listens for ever"),
    };
    match ending {
        Ending::Stopped => Ok(()),
        Ending::Refused { part, why } => {
            let exit = Exit::from_number(why.exit).max(Exit::Found);
            Err(Failure {
                exit,
                error: anyhow!("{part} does not start: {}", why.message),
            })
        }
        Ending::CrashLoop { part, deaths, how } => Err(Failure::found(anyhow!(
            "{part} ended {deaths} times in a short time, last with {how}: given up; the lines of \
             {part} above say why"
        ))),
    }
}

/// Where everything of one serving is, and what each part is told.
struct Plan<'a> {
    settings: &'a Serve,
    executable: PathBuf,
    weights: PathBuf,
    dir: PathBuf,
    certs: PathBuf,
    keys: Option<PathBuf>,
}

impl<'a> Plan<'a> {
    fn new(settings: &'a Serve, weights: &Path, dir: &RuntimeDir) -> anyhow::Result<Plan<'a>> {
        // Of this process, not of the path: it stays the same file if the path is overwritten.
        let executable = PathBuf::from("/proc/self/exe");
        let executable = match executable.exists() {
            true => std::fs::read_link(executable)?,
            false => std::env::current_exe()?,
        };
        let certs = dir.path().join("certs");
        let validity = control::certs::Validity::days(parts::CERTIFICATE_DAYS);
        control::certs::new_cluster(&certs, validity).context("cannot make certificates")?;
        let keys = match &settings.keys {
            Keys::Open => None,
            Keys::File(file) => Some(file.clone()),
            Keys::Given(keys) => Some(dir.write_private("api-keys", &(keys.join("\n") + "\n"))?),
        };
        let (weights, dir) = (std::path::absolute(weights)?, dir.path().to_owned());
        Ok(Plan {
            settings,
            executable,
            weights,
            dir,
            certs,
            keys,
        })
    }

    /// Workers one after another, each in a stage of its own, so that each compares its pool
    /// with the memory that the one before it has left; the gateway last.
    fn parts(&self) -> Vec<Part> {
        let decodes = (0..self.settings.decode).map(|i| ("decode", i));
        let prefills = (0..self.settings.prefill).map(|i| ("prefill", i));
        let mut parts = Vec::new();
        for (role, index) in decodes.chain(prefills) {
            parts.push((format!("{role}-{index}"), self.worker(role, index)));
        }
        parts.push(("gateway".to_owned(), self.gateway()));
        let part = |(stage, (name, arguments)): (usize, (String, Vec<String>))| {
            let executable = self.executable.clone();
            let command = Box::new(move || command(&executable, &arguments));
            Part {
                name,
                stage: stage as u32,
                command,
            }
        };
        parts.into_iter().enumerate().map(part).collect()
    }

    fn address(&self, role: &str, index: u32) -> String {
        format!("unix:{}/{role}-{index}.sock", self.dir.display())
    }

    fn worker(&self, role: &str, index: u32) -> Vec<String> {
        let mut arguments = vec![role.to_owned()];
        arguments.extend(["--listen".into(), self.address(role, index)]);
        let Engine {
            pool_tokens,
            page_size,
            max_context,
            threads,
            numeric,
            scrub,
        } = &self.settings.engine;
        let optional = |name: &str, value: Option<String>| {
            value
                .map(|value| [format!("--{name}"), value])
                .into_iter()
                .flatten()
        };
        arguments.extend(optional("pool-tokens", pool_tokens.map(|n| n.to_string())));
        arguments.extend(optional("page-size", Some(page_size.to_string())));
        arguments.extend(optional("max-context", max_context.map(|n| n.to_string())));
        arguments.extend(optional("threads", Some(threads.to_string())));
        arguments.extend(optional("numeric", Some(numeric.word().to_owned())));
        arguments.push(format!("--scrub={scrub}"));
        self.with_common(arguments)
    }

    fn gateway(&self) -> Vec<String> {
        let settings = self.settings;
        let mut arguments = vec!["gateway".to_owned()];
        arguments.extend(["--host".into(), settings.host.to_string()]);
        arguments.extend(["--port".into(), settings.port.to_string()]);
        for index in 0..settings.prefill {
            arguments.extend(["--prefill-at".into(), self.address("prefill", index)]);
        }
        for index in 0..settings.decode {
            arguments.extend(["--decode-at".into(), self.address("decode", index)]);
        }
        if let Some(name) = &settings.served_model_name {
            arguments.extend(["--served-model-name".into(), name.clone()]);
        }
        if let Some(keys) = &self.keys {
            arguments.extend(["--api-keys".into(), keys.display().to_string()]);
        }
        let drain = settings.drain.as_secs().to_string();
        arguments.extend(["--drain-seconds".into(), drain]);
        self.with_common(arguments)
    }

    fn with_common(&self, mut arguments: Vec<String>) -> Vec<String> {
        arguments.extend(["--model".into(), self.weights.display().to_string()]);
        arguments.extend(["--certs".into(), self.certs.display().to_string()]);
        arguments.extend([
            "--log-format".into(),
            self.settings.log_format.word().into(),
        ]);
        arguments.push("--until-stdin-closes".into());
        arguments
    }
}

/// A part is told everything by flags: variables meant for `serve` must not reach it, where the
/// same name may mean something else.
fn command(executable: &Path, arguments: &[String]) -> Command {
    let mut command = Command::new(executable);
    command.args(arguments);
    let names = std::env::vars_os().map(|(name, _)| name);
    for name in names.filter(|name| name.to_string_lossy().starts_with("COFFERDAM_")) {
        command.env_remove(name);
    }
    command
}

/// Writes what the operator of a terminal, or a log collector, wants to see.
struct Console {
    format: LogFormat,
}

impl Supervised for Console {
    fn all_ready(&mut self, reports: &[Ready]) {
        let gateway = reports.last().expect("the gateway is the last part");
        println!("{}", ready_line(gateway));
        println!("{}", curl_line(gateway));
    }

    fn notice(&mut self, text: &str) {
        tracing::info!("{text}");
    }

    fn line(&mut self, part: &str, line: &str) {
        eprintln!("{}", line_of_part(self.format, part, line));
    }
}

/// The one line that says that requests are welcome, and where.
pub(crate) fn ready_line(gateway: &Ready) -> String {
    let mut line = format!("ready: http://{}/v1", gateway.addr);
    if let Some(model) = &gateway.model {
        line += &format!(" serves {model}");
    }
    if let (Some(context), Some(prompt)) = (gateway.max_context, gateway.max_prompt_tokens) {
        line += &format!(" (context {context} tokens, prompts up to {prompt})");
    }
    line
}

/// A request to copy. An unspecified address is not one to connect to.
pub(crate) fn curl_line(gateway: &Ready) -> String {
    let address = gateway
        .addr
        .replace("0.0.0.0", "127.0.0.1")
        .replace("[::]", "[::1]");
    let model = gateway.model.as_deref().unwrap_or("default");
    format!(
        "try:   curl http://{address}/v1/chat/completions -H 'Content-Type: application/json' \
         -d '{{\"model\":\"{model}\",\"messages\":[{{\"role\":\"user\",\"content\":\"What is a \
         cofferdam?\"}}]}}'"
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::{Cli, Numeric, ServeFlags, WithConfig};
    use crate::settings;
    use clap::Parser;

    fn planned(flags: ServeFlags) -> (Serve, RuntimeDir, Vec<(String, Vec<String>)>) {
        let settings = Serve::resolve(WithConfig {
            config: None,
            flags,
        })
        .unwrap();
        let base = std::env::temp_dir();
        let dir = RuntimeDir::new_in(&base).unwrap();
        let plan = Plan::new(&settings, Path::new("w.gguf"), &dir).unwrap();
        let words = |part: Part| {
            let words = (part.command)();
            let words = words
                .get_args()
                .map(|word| word.to_str().unwrap().to_owned());
            (part.name, words.collect())
        };
        let parts = plan.parts().into_iter().map(words).collect();
        (settings, dir, parts)
    }

    fn parse(words: &[String]) -> crate::args::Command {
        let words = std::iter::once("cofferdam").chain(words.iter().map(String::as_str));
        Cli::try_parse_from(words).unwrap().command
    }

    #[test]
    fn every_part_is_told_everything_in_words_that_it_understands() {
        let flags = ServeFlags {
            prefill: Some(2),
            pool_tokens: Some(4096),
            max_context: Some(1024),
            numeric: Some(Numeric::Exact),
            scrub: Some(true),
            api_key: Some(vec!["secret".into()]),
            served_model_name: Some("m".into()),
            ..ServeFlags::default()
        };
        let (serve, dir, parts) = planned(flags);
        let names: Vec<_> = parts.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, ["decode-0", "prefill-0", "prefill-1", "gateway"]);
        let crate::args::Command::Prefill(given) = parse(&parts[2].1) else {
            panic!("role")
        };
        let worker = settings::Worker::resolve(given).unwrap();
        assert_eq!(worker.engine, serve.engine);
        assert_eq!(
            worker.listen,
            format!("unix:{}/prefill-1.sock", dir.path().display())
        );
        assert!(worker.until_stdin_closes && worker.model.unwrap().is_absolute());

        let crate::args::Command::Gateway(given) = parse(&parts[3].1) else {
            panic!("role")
        };
        let gateway = settings::Gateway::resolve(given).unwrap();
        assert_eq!((gateway.prefill_at.len(), gateway.decode_at.len()), (2, 1));
        assert!(gateway.prefill_at.contains(&worker.listen));
        assert_eq!(gateway.served_model_name.as_deref(), Some("m"));
        assert_eq!((gateway.host, gateway.port), (serve.host, serve.port));
        assert!(gateway.certs.join("ca.pem").exists());
        let keys = std::fs::read_to_string(gateway.api_keys.unwrap()).unwrap();
        assert_eq!(keys, "secret\n");
        assert!(
            !parts[3].1.contains(&"secret".to_owned()),
            "keys are not for the process list"
        );
    }

    #[test]
    fn the_ready_lines_can_be_copied() {
        let gateway = Ready {
            addr: "0.0.0.0:8080".into(),
            model: Some("SmolLM2-135M-Instruct".into()),
            max_context: Some(8192),
            max_prompt_tokens: Some(8191),
            ..Ready::default()
        };
        assert_eq!(
            ready_line(&gateway),
            "ready: http://0.0.0.0:8080/v1 serves SmolLM2-135M-Instruct (context 8192 tokens, \
             prompts up to 8191)"
        );
        let curl = curl_line(&gateway);
        assert!(
            curl.contains("curl http://127.0.0.1:8080/v1/chat/completions"),
            "{curl}"
        );
        let body = curl.split("-d '").nth(1).unwrap().trim_end_matches('\'');
        let body: serde_json::Value = serde_json::from_str(body).unwrap();
        assert_eq!(body["model"], "SmolLM2-135M-Instruct");
    }
}
