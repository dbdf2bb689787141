//! The operators' page over a fleet that does not exist: for who works on the page, and for its test in
//! a browser. `cargo run -p desk --example desk -- healthy|incident|large|large-incident|bare [PORT]`

mod made_up;

use std::sync::Arc;
use std::time::Duration;

use desk::{Keys, serve};
use made_up::MadeUp;
use tokio::net::TcpListener;

/// Good for this example alone.
const KEY: &str = "anna-key-of-a-made-up-fleet";

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut words = std::env::args().skip(1);
    let name = words.next().unwrap_or_else(|| "healthy".into());
    let port: u16 = words.next().map_or(Ok(0), |port| port.parse())?;
    let fleet = made_up::fleet(&name).ok_or_else(|| {
        format!("{name}: expected healthy, incident, large, large-incident or bare")
    })?;
    let desk = Arc::new(MadeUp::new(fleet));
    let listener = TcpListener::bind(("127.0.0.1", port)).await?;
    println!(
        "ready: http://{} with the key {KEY}",
        listener.local_addr()?
    );
    let alive = desk.clone();
    tokio::spawn(async move {
        loop {
            tokio::time::sleep(Duration::from_secs(1)).await;
            alive.change(|state| {
                state.running.requests = 10 + state.at_ms / 1000 % 7;
                for pair in &mut state.pairs {
                    pair.requests += 3;
                }
            });
        }
    });
    let keys = Keys::parse(&format!("anna {KEY}"))?;
    let end = async {
        let _ = tokio::signal::ctrl_c().await;
    };
    serve(listener, None, keys, desk, end).await?;
    Ok(())
}
