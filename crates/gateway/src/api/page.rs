//! `/`: for a browser one small page (what this is, the model, whether it is ready, a command to
//! try, a chat), for everybody else a few words of JSON. The page needs no key and knows nothing: its
//! script asks the API with the key that its reader types, and nothing is fetched from elsewhere.

use http::{HeaderMap, HeaderValue, Response, StatusCode, header};
use serde_json::json;

use super::body::{self, Reply};

/// What a browser may do with the page: run the script and use the style that lie beside it, and
/// ask this server.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; \
                      img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// A file of the page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum File {
    /// The page itself.
    Page,
    /// What it does.
    Script,
    /// How it looks.
    Style,
}

/// The file, or words about the API where a page was not asked for.
pub(super) fn answer(file: File, headers: &HeaderMap) -> Response<Reply> {
    let (media, text) = match file {
        File::Page if wants_page(headers) => (
            "text/html; charset=utf-8",
            include_str!("../page/index.html"),
        ),
        File::Page => return with(words(), &[(header::VARY, "Accept")]),
        File::Script => (
            "text/javascript; charset=utf-8",
            include_str!("../page/page.js"),
        ),
        File::Style => ("text/css; charset=utf-8", include_str!("../page/page.css")),
    };
    let response = body::whole(StatusCode::OK, media, text);
    with(
        response,
        &[
            (header::CONTENT_SECURITY_POLICY, POLICY),
            (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
            (header::REFERRER_POLICY, "no-referrer"),
            (header::CACHE_CONTROL, "no-cache"),
            (header::VARY, "Accept"),
        ],
    )
}

fn with(
    mut response: Response<Reply>,
    headers: &[(header::HeaderName, &'static str)],
) -> Response<Reply> {
    for (name, value) in headers {
        let value = HeaderValue::from_static(value);
        response.headers_mut().insert(name, value);
    }
    response
}

/// Browsers name HTML; `curl` and clients of the API do not.
fn wants_page(headers: &HeaderMap) -> bool {
    let accepted = headers.get_all(header::ACCEPT).iter();
    let mut ranges = accepted
        .filter_map(|value| value.to_str().ok())
        .flat_map(|line| line.split(','));
    ranges.any(|range| {
        let mut parts = range.split(';').map(str::trim);
        let named = parts
            .next()
            .is_some_and(|it| it.eq_ignore_ascii_case("text/html"));
        named && parts.all(|part| !matches!(part, "q=0" | "q=0.0" | "q=0.00" | "q=0.000"))
    })
}

fn words() -> Response<Reply> {
    let words = json!({
        "name": "cofferdam",
        "version": env!("CARGO_PKG_VERSION"),
        "what": "a language model behind OpenAI's API",
        "base_url": "/v1",
        "try": ["GET /readyz", "GET /v1/models", "POST /v1/chat/completions"],
        "documentation": "docs/api.md",
    });
    body::json(StatusCode::OK, &words)
}
