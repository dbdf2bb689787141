use super::*;
use serde_json::json;

fn rules(prefill: &str, decode: &str) -> EndpointRules {
    EndpointRules {
        prefill: Some(prefill.into()),
        decode: Some(decode.into()),
        ..EndpointRules::default()
    }
}

/// For lists that have nodes of one role.
fn only(prefill: Option<&str>, decode: Option<&str>) -> EndpointRules {
    EndpointRules {
        prefill: prefill.map(str::to_owned),
        decode: decode.map(str::to_owned),
        ..EndpointRules::default()
    }
}

fn slice(role: &str, addresses: &[&str]) -> Value {
    let endpoint = |address: &&str| {
        json!({
            "addresses": [address],
            "conditions": { "ready": false, "terminating": *address == "10.0.0.9" },
            "targetRef": { "kind": "Pod", "name": format!("llm-{}", address.replace('.', "-")), "uid": format!("uid-{address}") },
        })
    };
    json!({
        "kind": "EndpointSlice",
        "metadata": { "name": format!("{role}-abc"), "labels": { "role": role, "app": "llm" } },
        "ports": [{ "name": "http", "port": 30000 }],
        "endpoints": addresses.iter().map(endpoint).collect::<Vec<_>>(),
    })
}

fn list(items: &[Value]) -> Vec<u8> {
    json!({ "kind": "List", "items": items })
        .to_string()
        .into_bytes()
}

fn urls(found: &[FleetAddress], role: Stated) -> Vec<&str> {
    let of = found.iter().filter(|it| it.role == role);
    of.map(|it| it.url.as_str()).collect()
}

#[test]
fn slices_become_nodes_by_their_labels() {
    let json = list(&[
        slice("prefill", &["10.0.0.1", "10.0.0.9"]),
        slice("decode", &["10.0.0.2", "fd00::1"]),
        slice("router", &["10.0.0.3"]),
    ]);
    let found = read(
        &json,
        &rules("app=llm,role=prefill", "role==decode,!canary"),
    )
    .unwrap();
    assert_eq!(
        urls(&found, Stated::Prefill),
        ["http://10.0.0.1:30000"],
        "one is terminating"
    );
    assert_eq!(
        urls(&found, Stated::Decode),
        ["http://10.0.0.2:30000", "http://[fd00::1]:30000"]
    );
    assert_eq!(found[0].name, "pod/llm-10-0-0-1");
    assert_eq!(found[0].pod.as_deref(), Some("uid-10.0.0.1"));
    let one = slice("decode", &["10.0.0.2"]).to_string();
    assert_eq!(
        read(one.as_bytes(), &only(None, Some("role")))
            .unwrap()
            .len(),
        1
    );
}

#[test]
fn a_service_is_one_address_for_many_servers() {
    let service = json!({
        "kind": "Service",
        "metadata": { "name": "d", "namespace": "llm", "labels": { "role": "decode" } },
        "spec": { "clusterIP": "None", "ports": [{ "port": 80 }, { "name": "http", "port": 30000 }] },
    });
    let json = service.to_string().into_bytes();
    let mut rules = only(None, Some("role=decode"));
    let said = read(&json, &rules).unwrap_err().to_string();
    assert!(
        said.contains("which port of service/d (2 there)?"),
        "{said}"
    );
    rules.port = Some("http".into());
    let found = read(&json, &rules).unwrap();
    assert_eq!(found[0].url, "http://d.llm.svc:30000");
    assert!(found[0].shared_address);
}

#[test]
fn pods_are_read_too() {
    let pod = |phase: &str| {
        json!({
            "kind": "Pod",
            "metadata": { "name": "p-0", "uid": "8f2", "labels": { "role": "prefill" } },
            "spec": { "containers": [{ "ports": [{ "containerPort": 8000 }] }, {}] },
            "status": { "phase": phase, "podIP": "10.1.1.1" },
        })
    };
    let rules = only(Some("role=prefill"), None);
    let found = read(&list(&[pod("Running"), pod("Failed")]), &rules).unwrap();
    assert_eq!(found.len(), 1);
    assert_eq!(found[0].url, "http://10.1.1.1:8000");
    assert_eq!(found[0].pod.as_deref(), Some("8f2"));
}

#[test]
fn what_cannot_be_decided_is_an_error() {
    let good = list(&[slice("prefill", &["10.0.0.1"])]);
    let both = rules("app=llm", "role=prefill");
    let none = EndpointRules::default();
    let nothing = rules("role=nobody", "role=nothing");
    let deployment =
        list(&[json!({ "kind": "Deployment", "metadata": { "labels": { "role": "prefill" } } })]);
    let odd = list(&[slice("prefill", &["10.0.0.1/../x@y"])]);
    let usual = rules("role=prefill", "role=decode");
    for (json, rules, says) in [
        (&good, &both, "two selectors pick endpointslice/prefill-abc"),
        (&good, &none, "Give a selector for each"),
        (
            &good,
            &nothing,
            "the selector of prefill (role=nobody) picks none of 1 objects; their labels: \
             role=prefill (1), app=llm (1)",
        ),
        (
            &good,
            &usual,
            "the selector of decode (role=decode) picks none of 1 objects",
        ),
        (&good, &rules("role=prefill", "a b=c"), "is no selector"),
        (&deployment, &usual, "is a Deployment"),
        (&odd, &usual, "is no address"),
        (&b"<html>".to_vec(), &usual, "is no JSON"),
    ] {
        let said = read(json, rules).unwrap_err().to_string();
        assert!(said.contains(says), "{said}");
    }
}
