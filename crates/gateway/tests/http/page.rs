//! The page at `/`: what a browser is given, and that it asks nobody else.

use std::collections::BTreeMap;

use crate::support::{Reply, Server, request};

/// What a browser says that it takes, from its address line.
const BROWSER: &str = "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8";

async fn file(server: &Server, path: &str) -> Reply {
    let bytes = request("GET", path, &[("accept", BROWSER)], "");
    let reply = server.connect().await.send(&bytes).await;
    assert_eq!(reply.status, 200, "{path}");
    reply
}

/// What may be loaded, by kind.
fn policy(reply: &Reply) -> BTreeMap<String, String> {
    let rules = reply.headers["content-security-policy"].split("; ");
    rules
        .map(|rule| rule.split_once(' ').unwrap())
        .map(|(kind, from)| (kind.to_owned(), from.to_owned()))
        .collect()
}

#[tokio::test]
async fn a_browser_gets_a_page_that_asks_this_server_and_nobody_else() {
    let server = Server::start().await;
    let page = file(&server, "/").await;
    let script = file(&server, "/page.js").await;
    let style = file(&server, "/page.css").await;
    for (reply, media) in [
        (&page, "text/html; charset=utf-8"),
        (&script, "text/javascript; charset=utf-8"),
        (&style, "text/css; charset=utf-8"),
    ] {
        assert_eq!(reply.headers["content-type"], media);
        assert_eq!(reply.headers["x-content-type-options"], "nosniff");
        assert_eq!(reply.headers["referrer-policy"], "no-referrer");
        let text = reply.text();
        for elsewhere in ["http:", "https:", "src=\"//", "@import", "url("] {
            assert!(!text.contains(elsewhere), "{media}: {elsewhere}");
        }
        let policy = policy(reply);
        assert_eq!(policy["default-src"], "'none'");
        for (kind, from) in &policy {
            let own = ["'self'", "'none'", "data:"].contains(&from.as_str());
            assert!(
                own && (from != "data:" || kind == "img-src"),
                "{kind} {from}"
            );
        }
    }
    let (page, script) = (page.text(), script.text());
    assert!(script.len() < 10_000, "{} bytes of script", script.len());
    // The policy would not run or use these; nor does the script make markup of what a model says.
    for inline in [
        "<style",
        "style=",
        "onclick",
        "onload",
        "<script>",
        "javascript:",
    ] {
        assert!(!page.contains(inline), "{inline}");
    }
    for unsafe_way in [
        "innerHTML",
        "outerHTML",
        "insertAdjacent",
        "document.write",
        "eval(",
    ] {
        assert!(!script.contains(unsafe_way), "{unsafe_way}");
    }
    for kept in [
        "localStorage",
        "sessionStorage",
        "cookie",
        "indexedDB",
        "location.hash",
    ] {
        assert!(!script.contains(kept), "the key is kept in {kept}");
    }
    assert!(page.contains("name=\"viewport\"") && style.text().contains("color-scheme: dark"));
    // Whatever the script looks for is on the page.
    for part in script.split("$(\"").skip(1) {
        let id = part.split('"').next().unwrap();
        assert!(page.contains(&format!("id=\"{id}\"")), "{id}");
    }
}

#[tokio::test]
async fn who_is_no_browser_gets_a_few_words_of_json_and_no_model() {
    let server = Server::start().await;
    for accept in [
        "*/*",
        "application/json",
        "text/html;q=0, */*",
        "text/plain",
    ] {
        let bytes = request("GET", "/", &[("accept", accept)], "");
        let reply = server.connect().await.send(&bytes).await;
        assert_eq!(
            reply.headers["content-type"], "application/json",
            "{accept}"
        );
        assert_eq!(reply.headers["vary"], "Accept");
        let json = reply.json();
        assert_eq!(
            (&json["name"], &json["base_url"]),
            (&"cofferdam".into(), &"/v1".into())
        );
        assert!(!reply.text().contains("small"), "the model needs the key");
    }
}
