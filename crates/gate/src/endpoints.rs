//! Nodes out of what `kubectl get endpointslices -o json` (or `services`, `pods`) printed. No
//! client of a cluster is needed, and no right in it.

use crate::config::{ConfigError, EndpointRules, NODES_MAX};
use crate::judge::Stated;
use serde_json::Value;
use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;

/// Bytes that are read.
pub const BYTES_MAX: u64 = 64 << 20;

/// An address with a role.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FleetAddress {
    /// `pod/NAME`, or the URL.
    pub name: String,
    /// Scheme, host and port.
    pub url: String,
    /// What its labels say that it does.
    pub role: Stated,
    /// The UID of its pod, where it is one: a pod that is made anew under the same address has another.
    pub pod: Option<String>,
    /// It stands for several servers.
    pub shared_address: bool,
}

/// Everything that the selectors pick.
///
/// # Errors
/// It is no such JSON, no selector is given, two selectors pick one object, a port is ambiguous, or
/// one of the selectors picks nothing: half a list must not look like a good fleet.
pub fn read(json: &[u8], rules: &EndpointRules) -> Result<Vec<FleetAddress>, ConfigError> {
    let root: Value = serde_json::from_slice(json).map_err(|error| {
        wrong(&format!(
            "is no JSON ({error}): kubectl get endpointslices -o json"
        ))
    })?;
    let selectors = selectors(rules)?;
    let items: Vec<&Value> = match root["items"].as_array() {
        Some(items) => items.iter().collect(),
        None => vec![&root],
    };
    let mut found: Vec<FleetAddress> = Vec::new();
    for item in &items {
        let Some(role) = role(item, &selectors)? else {
            continue;
        };
        for endpoint in endpoints(item, role, rules)? {
            // Slices of one service may name an address twice (IPv4 and IPv6 stay two).
            if !found.iter().any(|it| it.url == endpoint.url) {
                found.push(endpoint);
            }
        }
    }
    for (role, selector) in &selectors {
        if !items
            .iter()
            .any(|item| selector.picks(&item["metadata"]["labels"]))
        {
            return Err(wrong(&picks_nothing(*role, selector, &items)));
        }
    }
    match found.len() {
        0 => {
            let n = items.len();
            let why =
                format!("what the selectors pick of {n} objects has no address that is served");
            Err(wrong(&why))
        }
        n if n > NODES_MAX => Err(wrong(&format!("more than {NODES_MAX} addresses"))),
        _ => Ok(found),
    }
}

/// Labels that are named to whose selector picks nothing.
const LABELS_NAMED_MAX: usize = 8;

fn picks_nothing(role: Stated, selector: &Selector, items: &[&Value]) -> String {
    let mut labels: BTreeMap<String, usize> = BTreeMap::new();
    for item in items {
        let of = item["metadata"]["labels"].as_object().into_iter().flatten();
        let pairs = of.filter_map(|(name, value)| Some(format!("{name}={}", value.as_str()?)));
        pairs.for_each(|pair| *labels.entry(pair).or_default() += 1);
    }
    let asked = |label: &str| {
        let name = label.split('=').next().unwrap_or(label);
        selector.0.iter().any(|term| term.name() == name)
    };
    // Other values of the labels that were asked for stand first.
    let mut labels: Vec<_> = labels.into_iter().collect();
    labels.sort_by_key(|(label, n)| (!asked(label), std::cmp::Reverse(*n)));
    let named = labels.iter().take(LABELS_NAMED_MAX);
    let named: Vec<_> = named.map(|(label, n)| format!("{label} ({n})")).collect();
    let named = match (
        named.is_empty(),
        labels.len().saturating_sub(LABELS_NAMED_MAX),
    ) {
        (true, _) => "none has a label".to_owned(),
        (false, 0) => format!("their labels: {}", named.join(", ")),
        (false, n) => format!("their labels: {} and {n} more", named.join(", ")),
    };
    format!(
        "the selector of {} ({selector}) picks none of {} objects; {named}",
        role.word(),
        items.len()
    )
}

fn wrong(why: &str) -> ConfigError {
    ConfigError::whole(format!("endpoints: {why}"))
}

/// A label selector as `kubectl -l` takes it: `a=b`, `a==b`, `a!=b`, `a`, `!a`, all of them.
#[derive(Debug)]
struct Selector(Vec<Term>);

#[derive(Debug)]
enum Term {
    Is(String, String),
    IsNot(String, String),
    Has(String),
    HasNot(String),
}

impl Term {
    fn name(&self) -> &str {
        match self {
            Term::Is(name, _) | Term::IsNot(name, _) | Term::Has(name) | Term::HasNot(name) => name,
        }
    }
}

impl fmt::Display for Selector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (n, term) in self.0.iter().enumerate() {
            f.write_str(if n == 0 { "" } else { "," })?;
            match term {
                Term::Is(name, value) => write!(f, "{name}={value}"),
                Term::IsNot(name, value) => write!(f, "{name}!={value}"),
                Term::Has(name) => f.write_str(name),
                Term::HasNot(name) => write!(f, "!{name}"),
            }?;
        }
        Ok(())
    }
}

impl Selector {
    fn parse(text: &str) -> Result<Selector, ConfigError> {
        let term = |term: &str| {
            let term = term.trim();
            let pair =
                |(name, value): (&str, &str)| (name.trim().to_owned(), value.trim().to_owned());
            let parsed = if let Some(it) = term.split_once("!=") {
                let (name, value) = pair(it);
                Term::IsNot(name, value)
            } else if let Some(it) = term.split_once("==").or_else(|| term.split_once('=')) {
                let (name, value) = pair(it);
                Term::Is(name, value)
            } else if let Some(name) = term.strip_prefix('!') {
                Term::HasNot(name.trim().to_owned())
            } else {
                Term::Has(term.to_owned())
            };
            let name = parsed.name();
            let plain = |c: char| c.is_ascii_alphanumeric() || "-_./".contains(c);
            match !name.is_empty() && name.chars().all(plain) {
                true => Ok(parsed),
                false => Err(wrong(&format!("{text:?} is no selector (a=b,c!=d,e,!f)"))),
            }
        };
        text.split(',')
            .map(term)
            .collect::<Result<_, _>>()
            .map(Selector)
    }

    fn picks(&self, labels: &Value) -> bool {
        let of = |name: &str| labels.get(name).and_then(Value::as_str);
        self.0.iter().all(|term| match term {
            Term::Is(name, value) => of(name) == Some(value),
            Term::IsNot(name, value) => of(name) != Some(value),
            Term::Has(name) => of(name).is_some(),
            Term::HasNot(name) => of(name).is_none(),
        })
    }
}

fn selectors(rules: &EndpointRules) -> Result<Vec<(Stated, Selector)>, ConfigError> {
    let given = [
        (Stated::Prefill, &rules.prefill),
        (Stated::Decode, &rules.decode),
        (Stated::Server, &rules.server),
    ];
    let given = given
        .into_iter()
        .filter_map(|(role, text)| Some((role, text.as_ref()?)));
    let parsed = given.map(|(role, text)| Ok((role, Selector::parse(text)?)));
    let parsed: Vec<_> = parsed.collect::<Result<_, ConfigError>>()?;
    match parsed.is_empty() {
        true => Err(wrong(
            "which are prefill, decode or server? Give a selector for each",
        )),
        false => Ok(parsed),
    }
}

fn role(item: &Value, selectors: &[(Stated, Selector)]) -> Result<Option<Stated>, ConfigError> {
    let labels = &item["metadata"]["labels"];
    let mut picked = selectors
        .iter()
        .filter(|(_, selector)| selector.picks(labels));
    let role = picked.next().map(|(role, _)| *role);
    match picked.next() {
        None => Ok(role),
        Some(_) => Err(wrong(&format!("two selectors pick {}", name_of(item)))),
    }
}

fn name_of(item: &Value) -> String {
    let text = |value: &Value| value.as_str().unwrap_or("?").to_owned();
    format!(
        "{}/{}",
        text(&item["kind"]).to_lowercase(),
        text(&item["metadata"]["name"])
    )
}

fn endpoints(
    item: &Value,
    role: Stated,
    rules: &EndpointRules,
) -> Result<Vec<FleetAddress>, ConfigError> {
    match item["kind"].as_str() {
        Some("EndpointSlice") => slice(item, role, rules),
        Some("Service") => service(item, role, rules).map(|it| vec![it]),
        Some("Pod") => pod(item, role, rules),
        other => Err(wrong(&format!(
            "{} is a {}: EndpointSlice, Service and Pod are read",
            name_of(item),
            other.unwrap_or("thing without a kind")
        ))),
    }
}

fn slice(
    item: &Value,
    role: Stated,
    rules: &EndpointRules,
) -> Result<Vec<FleetAddress>, ConfigError> {
    let port = port(item, &item["ports"], "port", rules)?;
    let mut found = Vec::new();
    for endpoint in item["endpoints"].as_array().into_iter().flatten() {
        // One that ends takes no more requests. One that is not ready yet is just what a gate is for.
        if endpoint["conditions"]["terminating"].as_bool() == Some(true) {
            continue;
        }
        // Kubernetes: all addresses of one endpoint are the same, and the first is used.
        let Some(address) = endpoint["addresses"][0].as_str() else {
            return Err(wrong(&format!(
                "{} has an endpoint without address",
                name_of(item)
            )));
        };
        let url = url(address, port, rules)?;
        let of_target = |field: &str| endpoint["targetRef"][field].as_str();
        let target = of_target("name");
        let name = target.map_or_else(|| url.clone(), |name| format!("pod/{name}"));
        found.push(FleetAddress {
            name,
            url,
            role,
            pod: of_target("uid").map(str::to_owned),
            shared_address: false,
        });
    }
    Ok(found)
}

fn service(item: &Value, role: Stated, rules: &EndpointRules) -> Result<FleetAddress, ConfigError> {
    let port = port(item, &item["spec"]["ports"], "port", rules)?;
    let text = |value: &Value| value.as_str().map(str::to_owned);
    let cluster = text(&item["spec"]["clusterIP"]).filter(|it| it != "None" && !it.is_empty());
    let name = text(&item["metadata"]["name"]).unwrap_or_default();
    let namespace = text(&item["metadata"]["namespace"]).unwrap_or("default".to_owned());
    let address = cluster.unwrap_or(format!("{name}.{namespace}.svc"));
    Ok(FleetAddress {
        name: name_of(item),
        url: url(&address, port, rules)?,
        role,
        pod: None,
        shared_address: true,
    })
}

fn pod(
    item: &Value,
    role: Stated,
    rules: &EndpointRules,
) -> Result<Vec<FleetAddress>, ConfigError> {
    let over = matches!(
        item["status"]["phase"].as_str(),
        Some("Succeeded" | "Failed")
    );
    if over || !item["metadata"]["deletionTimestamp"].is_null() {
        return Ok(Vec::new());
    }
    let containers = item["spec"]["containers"].as_array().into_iter().flatten();
    let ports = containers
        .filter_map(|it| it["ports"].as_array())
        .flatten()
        .cloned();
    let port = port(item, &Value::Array(ports.collect()), "containerPort", rules)?;
    let Some(address) = item["status"]["podIP"].as_str() else {
        return Err(wrong(&format!("{} has no address yet", name_of(item))));
    };
    Ok(vec![FleetAddress {
        name: name_of(item),
        url: url(address, port, rules)?,
        role,
        pod: item["metadata"]["uid"].as_str().map(str::to_owned),
        shared_address: false,
    }])
}

/// The port that the rules name, or the only one.
fn port(
    item: &Value,
    ports: &Value,
    field: &str,
    rules: &EndpointRules,
) -> Result<u16, ConfigError> {
    let number = |port: &Value| port[field].as_u64().and_then(|it| u16::try_from(it).ok());
    let ports: Vec<&Value> = ports.as_array().into_iter().flatten().collect();
    let wanted = match &rules.port {
        // A number needs no declaration: pods often declare none.
        Some(port) if port.parse::<u16>().is_ok() => port.parse().ok(),
        Some(name) => {
            let named = ports
                .iter()
                .find(|port| port["name"].as_str() == Some(name));
            named.and_then(|port| number(port))
        }
        None if ports.len() == 1 => number(ports[0]),
        None => None,
    };
    wanted.filter(|it| *it != 0).ok_or_else(|| {
        wrong(&format!(
            "which port of {} ({} there)? Name it",
            name_of(item),
            ports.len()
        ))
    })
}

fn url(address: &str, port: u16, rules: &EndpointRules) -> Result<String, ConfigError> {
    let scheme = rules.scheme.as_deref().unwrap_or("http");
    if !matches!(scheme, "http" | "https") {
        return Err(wrong(&format!(
            "scheme {scheme:?} is neither http nor https"
        )));
    }
    let host = match address.parse::<IpAddr>() {
        Ok(IpAddr::V6(_)) => format!("[{address}]"),
        _ => address.to_owned(),
    };
    let plain = |c: char| c.is_ascii_alphanumeric() || "-.:[]".contains(c);
    match !host.is_empty() && host.chars().all(plain) {
        true => Ok(format!("{scheme}://{host}:{port}")),
        false => Err(wrong(&format!("{address:?} is no address"))),
    }
}

#[cfg(test)]
#[path = "endpoints_tests.rs"]
mod tests;
