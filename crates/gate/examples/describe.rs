//! Prints what servers and logs say about themselves:
//! `cargo run -p gate --example describe -- http://127.0.0.1:31100 server.log`

use gate::facts::net::{Address, Limits, NetTarget, Tls, TlsFiles, describe};
use gate::facts::{Fact, Node, read_log};
use std::fmt::Display;
use std::io::BufReader;

#[tokio::main]
async fn main() {
    let tls = Tls::new(&TlsFiles::default()).expect("no files, no errors");
    let (mut targets, mut nodes) = (Vec::new(), Vec::new());
    for name in std::env::args().skip(1) {
        match Address::parse(&name) {
            Ok(address) => targets.push(NetTarget {
                name,
                address,
                key: None,
                tls: tls.clone(),
            }),
            Err(_) => match std::fs::File::open(&name) {
                Ok(log) => nodes.push(read_log(&name, BufReader::new(log))),
                Err(error) => eprintln!("{name}: neither a URL nor a log: {error}"),
            },
        }
    }
    nodes.extend(
        describe(&targets, &Limits::default())
            .await
            .into_iter()
            .flatten(),
    );
    nodes.iter().for_each(print);
}

fn print(node: &Node) {
    println!("\n{}", node.name);
    say("engine", &node.engine, |it| {
        (it.value.to_string(), &it.source)
    });
    say("version", &node.version, |it| {
        (it.value.to_string(), &it.source)
    });
    say("role", &node.role, |it| (it.value.to_string(), &it.source));
    match &node.ranks {
        Err(why) => println!("  pool            unknown: {why}"),
        Ok(ranks) => ranks.iter().for_each(|rank| {
            say(&format!("pool {}", rank.name), &rank.pool, |it| {
                (it.value.to_string(), &it.source)
            });
        }),
    }
    let sizes = [
        ("context", &node.context),
        ("advertised", &node.advertised),
        ("longest prompt", &node.max_prompt),
    ];
    sizes
        .iter()
        .for_each(|(name, fact)| say(name, fact, |it| (it.value.to_string(), &it.source)));
    let counts = [
        ("page size", &node.page_size),
        ("running at most", &node.max_running),
        ("data ranks", &node.parallelism.data),
    ];
    counts
        .iter()
        .for_each(|(name, fact)| say(name, fact, |it| (it.value.to_string(), &it.source)));
    let switches = [
        ("truncates", &node.truncates),
        ("checksum", &node.checksum),
        ("deferred release", &node.deferred_release),
        ("open introspection", &node.open_introspection),
    ];
    switches
        .iter()
        .for_each(|(name, fact)| say(name, fact, |it| (it.value.to_string(), &it.source)));
    let texts = [
        ("backend", &node.backend),
        ("KV type", &node.kv_dtype),
        ("layout", &node.layout),
        ("model", &node.model),
        ("tokenizer", &node.tokenizer),
    ];
    texts
        .iter()
        .for_each(|(name, fact)| say(name, fact, |it| (it.value.clone(), &it.source)));
    for warning in &node.warnings {
        println!("  warning: {} ({})", warning.text, warning.source);
    }
}

fn say<T>(name: &str, fact: &Fact<T>, show: impl Fn(&T) -> (String, &gate::facts::FigureSource)) {
    match fact {
        Ok(it) => {
            let (value, source) = show(it);
            line(name, &value, source);
        }
        Err(why) => println!("  {name:18} unknown: {why}"),
    }
}

fn line(name: &str, value: &str, source: &dyn Display) {
    println!("  {name:18} {value:24} {source}");
}
