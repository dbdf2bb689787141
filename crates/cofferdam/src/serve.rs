//! `serve`: gateway, prefill and decode as processes of their own, under one supervisor.

use crate::args::{Api, LogFormat, Serve};
use crate::engine::weights;
use crate::exit::{Exit, Failure};
use crate::logs::{self, line_of_part};
use crate::parts;
use crate::plan::{Plan, key_file};
use crate::runtime;
use crate::runtime_dir::RuntimeDir;
use crate::stop::Stop;
use crate::supervisor::{Ending, Limits, Ready, Supervised, supervise};
use anyhow::anyhow;
use std::io::Write;
use std::path::Path;
use tokio::sync::mpsc;

/// Runs until it is stopped or cannot go on.
pub(crate) fn run(settings: Serve) -> Result<(), Failure> {
    run_limited(settings, Limits::default())
}

/// The same with other limits of supervision, for a laboratory that kills parts all day.
///
/// # Errors
/// See [`Failure`].
pub fn run_limited(settings: Serve, limits: Limits) -> Result<(), Failure> {
    logs::start(settings.common.log_format);
    parts::check_api(&settings.api)?;
    let weights = weights(&settings.common)?;
    parts::check_model(&weights)?;
    let dir = RuntimeDir::new().map_err(Failure::found)?;
    if settings.in_process {
        return in_process(settings, &weights, dir);
    }
    // One thread, and it is this one: see `supervise`.
    let runtime = runtime::on_this_thread()?;
    let result = runtime.block_on(supervised(&settings, limits, &weights, &dir));
    // All processes are reaped: nobody uses it any more.
    let removed = dir.remove().map_err(Failure::found);
    result.and(removed)
}

fn in_process(settings: Serve, weights: &Path, dir: RuntimeDir) -> Result<(), Failure> {
    let keys = key_file(&settings, &dir)?;
    let api = Api {
        api_keys: keys.clone(),
        ..settings.api
    };
    let settings = Serve { api, ..settings };
    let tls = over_tls(&settings.api);
    let announce = |gateway: &Ready| announce(gateway, keys.as_deref(), tls);
    let result = parts::in_process(settings, weights, announce);
    let removed = dir.remove().map_err(Failure::found);
    result.and(removed)
}

async fn supervised(
    settings: &Serve,
    limits: Limits,
    weights: &Path,
    dir: &RuntimeDir,
) -> Result<(), Failure> {
    let mut stop = Stop::new()?;
    let plan = Plan::new(settings, weights, dir)?;
    let parts = plan.parts();
    let limits = Limits {
        drain: settings.common.drain(),
        ..limits
    };
    let (asked, mut stops) = mpsc::channel(1);
    let listen = async {
        loop {
            stop.next().await;
            tracing::info!(
                "stopping: running requests get {} s; a second signal ends everything at once",
                settings.common.drain_seconds
            );
            let _ = asked.try_send(()); // one that waits already says the same
        }
    };
    let mut console = Console {
        format: settings.common.log_format,
        keys: plan.keys(),
        tls: over_tls(&settings.api),
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

/// Writes what the operator of a terminal, or a log collector, wants to see.
struct Console<'a> {
    format: LogFormat,
    keys: Option<&'a Path>,
    tls: OverTls,
}

impl Supervised for Console<'_> {
    fn all_ready(&mut self, reports: &[Ready]) {
        let gateway = reports.last().expect("the gateway is the last part");
        announce(gateway, self.keys, self.tls);
    }

    fn notice(&mut self, text: &str) {
        tracing::info!("{text}");
    }

    fn warning(&mut self, text: &str) {
        tracing::warn!("{text}");
    }

    fn line(&mut self, part: &str, line: &str) {
        // Nobody may read it any more; that is no reason to stop serving.
        let _ = writeln!(
            std::io::stderr(),
            "{}",
            line_of_part(self.format, part, line)
        );
    }
}

fn announce(gateway: &Ready, keys: Option<&Path>, tls: OverTls) {
    crate::notify::ready();
    // Whoever started this may have stopped reading.
    let _ = writeln!(
        std::io::stdout(),
        "{}\n{}",
        ready_line(gateway, tls),
        curl_line(gateway, keys, tls)
    );
}

/// What curl needs besides if the API speaks HTTPS. A certificate is made for a name, and in the line
/// stands an address.
type OverTls = Option<&'static str>;

fn over_tls(api: &Api) -> OverTls {
    api.tls_cert.as_ref().map(|_| match api.tls_client_ca {
        None => " --insecure",
        Some(_) => " --insecure --cert YOURS.pem --key YOURS.key",
    })
}

fn scheme(tls: OverTls) -> &'static str {
    tls.map_or("http", |_| "https")
}

/// The one line that says that requests are welcome, and where.
fn ready_line(gateway: &Ready, tls: OverTls) -> String {
    let mut line = format!("ready: {}://{}/v1", scheme(tls), gateway.addr);
    if let Some(model) = &gateway.model {
        line += &format!(" serves {model}");
    }
    if let (Some(context), Some(prompt)) = (gateway.max_context, gateway.max_prompt_tokens) {
        line += &format!(" (context {context} tokens, prompts up to {prompt})");
    }
    line
}

/// A request to copy. An unspecified address is not one to connect to. A key is read from its file,
/// so that it stands on no screen.
fn curl_line(gateway: &Ready, keys: Option<&Path>, tls: OverTls) -> String {
    let (scheme, words) = (scheme(tls), tls.unwrap_or_default());
    let address = gateway
        .addr
        .replace("0.0.0.0", "127.0.0.1")
        .replace("[::]", "[::1]");
    let model = gateway.model.as_deref().unwrap_or("default");
    let key = keys.map_or(String::new(), |file| {
        let first = "/^[^#]/ {print $2; exit}";
        let file = file.display();
        format!(" -H \"Authorization: Bearer $(awk '{first}' '{file}')\"")
    });
    format!(
        "try:   curl{words} {scheme}://{address}/v1/chat/completions -H 'Content-Type: application/json'{key} \
         -d '{{\"model\":\"{model}\",\"temperature\":0,\"messages\":[{{\"role\":\"user\",\
         \"content\":\"What is the capital of Japan?\"}}]}}'"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

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
            ready_line(&gateway, None),
            "ready: http://0.0.0.0:8080/v1 serves SmolLM2-135M-Instruct (context 8192 tokens, \
             prompts up to 8191)"
        );
        let curl = curl_line(&gateway, None, None);
        assert!(!curl.contains("Authorization"), "{curl}");
        assert!(
            curl.contains("curl http://127.0.0.1:8080/v1/chat/completions"),
            "{curl}"
        );
        let body = curl.split("-d '").nth(1).unwrap().trim_end_matches('\'');
        let body: serde_json::Value = serde_json::from_str(body).unwrap();
        assert_eq!(body["model"], "SmolLM2-135M-Instruct");
        let tls = Some(" --insecure");
        assert!(ready_line(&gateway, tls).starts_with("ready: https://0.0.0.0:8080/v1 "));
        let curl = curl_line(&gateway, None, tls);
        assert!(
            curl.contains("curl --insecure https://127.0.0.1:8080/v1/"),
            "{curl}"
        );
    }
}
