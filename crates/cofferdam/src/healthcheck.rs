//! `healthcheck`: one question to a running API. A container that holds nothing but this binary has
//! no other program that could ask it.

use crate::args::Healthcheck;
use crate::exit::{Exit, Failure};
use crate::runtime;
use anyhow::anyhow;
use gate::facts::Trouble;
use gate::facts::net::{Address, Tls, TlsFiles, get};
use tokio::time::Instant;

/// Bytes of the answer: `/readyz` names every worker that is away.
const ANSWER_MAX: usize = 1 << 20;

pub(crate) fn run(asked: &Healthcheck) -> Result<Exit, Failure> {
    let url = &asked.url;
    let address = Address::server(url).map_err(|why| Failure::usage(anyhow!("{url}: {why}")))?;
    let address = address.with_path(if asked.live { "/livez" } else { "/readyz" });
    let tls = Tls::new(&TlsFiles {
        ca: asked.ca.clone(),
        ..TlsFiles::default()
    });
    let tls = tls.map_err(|error| Failure::usage(anyhow!(error)))?;
    let runtime = runtime::on_this_thread()?;
    let end = Instant::now() + asked.timeout;
    match runtime.block_on(get(&address, None, &tls, ANSWER_MAX, end)) {
        Ok(_) => Ok(Exit::Good),
        Err(Trouble::Status { status }) => {
            Err(Failure::found(anyhow!("{address} answers {status}")))
        }
        Err(trouble) => Err(Failure::unreachable(anyhow!("{address}: {trouble}"))),
    }
}
