//! What is not served, though others serve it: said by name, so that nobody looks for a misspelling.
//! `docs/api.md` repeats the table and a test compares the two.

/// Paths, the first also standing for what lies below it, and what to do instead.
const ABSENT: &[(&[&str], &str)] = &[
    (
        &[
            "/v1/responses/{id}",
            "/v1/conversations",
            "/v1/assistants",
            "/v1/threads",
        ],
        "answers are not stored; send the whole conversation to `/v1/chat/completions`",
    ),
    (
        &[
            "/v1/embeddings",
            "/embeddings",
            "/embedding",
            "/pooling",
            "/classify",
        ],
        "the model generates text and gives no vectors; run an embedding model beside it",
    ),
    (
        &["/v1/rerank", "/v2/rerank", "/rerank", "/v1/score", "/score"],
        "the model generates text and gives no scores; run a reranker beside it",
    ),
    (
        &[
            "/v1/files",
            "/v1/uploads",
            "/v1/batches",
            "/v1/vector_stores",
        ],
        "nothing is stored; send requests as they come, several at once",
    ),
    (
        &["/v1/images", "/v1/audio", "/v1/videos", "/v1/realtime"],
        "text only, in and out",
    ),
    (
        &["/v1/moderations", "/v1/fine_tuning"],
        "one model is served as it is; ask the provider that has this",
    ),
    (
        &[
            "/v1/messages",
            "/api/chat",
            "/api/generate",
            "/api/tags",
            "/api/show",
        ],
        "another API is spoken there; use a client for OpenAI's, with `/v1` as its base",
    ),
    (
        &[
            "/completion",
            "/completions",
            "/chat/completions",
            "/generate",
            "/infill",
            "/models",
        ],
        "the API lies below `/v1`: `/v1/completions`, `/v1/chat/completions`, `/v1/models`",
    ),
    (
        &[
            "/props",
            "/slots",
            "/get_model_info",
            "/get_server_info",
            "/load",
        ],
        "use `/server_info` and `/metrics`",
    ),
    (
        &["/apply-template", "/lora-adapters", "/v1/load_lora_adapter"],
        "use `/tokenize` to see what a template makes; there are no adapters",
    ),
];

/// What to say to who asks for a path that is not served.
pub(super) fn message(path: &str) -> String {
    let below = |known: &str| {
        if let Some(before) = known.strip_suffix("{id}") {
            return path.starts_with(before);
        }
        let rest = path.strip_prefix(known);
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    };
    for (paths, instead) in ABSENT {
        if let Some(known) = paths.iter().find(|known| below(known)) {
            return format!("`{known}` is not served here: {instead}; see docs/api.md");
        }
    }
    if path.starts_with("/v1/v1/") {
        return "there is no such path: `/v1` stands there twice; it is a part of the client's base \
                URL or of its paths, not of both"
            .to_owned();
    }
    "there is no such path; see docs/api.md".to_owned()
}

/// The table as Markdown, exactly as it stands in `docs/api.md`.
#[cfg(test)]
fn markdown() -> String {
    let mut out = String::from("| not served (404 `not_found`) | instead |\n|---|---|\n");
    for (paths, instead) in ABSENT {
        let paths: Vec<String> = paths.iter().map(|path| format!("`{path}`")).collect();
        out += &format!("| {} | {instead} |\n", paths.join(", "));
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_document_repeats_the_table() {
        let doc = include_str!("../../../../docs/api.md");
        let table = markdown();
        assert!(doc.contains(&table), "docs/api.md must contain:\n{table}");
    }

    #[test]
    fn a_path_is_known_with_what_lies_below_it() {
        assert!(message("/v1/files/file-1/content").starts_with("`/v1/files` is not served"));
        assert!(message("/v1/responses/resp_1").starts_with("`/v1/responses/{id}` is not served"));
        assert!(message("/v1/v1/models").contains("twice"));
        for other in ["/v1/filesystem", "/", "/v1", "/nothing"] {
            assert!(
                message(other).starts_with("there is no such path"),
                "{other}"
            );
        }
    }
}
