//! Fields that only the engine itself can carry out: taken out of a request as they are, each by name,
//! with what the engine needs beside them to write the same prompt.

use serde_json::{Map, Value};

use super::{Fields, known};

/// What else goes along with one of them.
const FOLLOW: &[(&str, &[&str])] = &[
    ("tools", &["tool_choice", "parallel_tool_calls"]),
    ("logprobs", &["top_logprobs"]),
];

/// What is also read here: the engine needs it to write the prompt that we have counted, and to end
/// the answer where the client wants it to.
const BESIDE: &[&str] = &[
    "messages",
    "add_generation_prompt",
    "continue_final_message",
    "chat_template_kwargs",
    "reasoning_effort",
    "stop",
    "include_stop_str_in_output",
    "skip_special_tokens",
];

/// Takes what is to be carried; none if nothing in the request needs it.
pub(super) fn take(fields: &mut Fields, carries: &[&str]) -> Option<Map<String, Value>> {
    let mut map = Map::new();
    for name in carries {
        let wanted = fields
            .look(name)
            .is_some_and(|it| !known::changes_nothing(name, it));
        if !wanted {
            continue;
        }
        let following = FOLLOW.iter().find(|(leader, _)| leader == name);
        let following = following.map_or(&[][..], |(_, names)| names);
        for name in [name].into_iter().chain(following) {
            map.extend(fields.take(name).map(|value| ((*name).to_owned(), value)));
        }
    }
    if map.is_empty() {
        return None;
    }
    for name in BESIDE {
        let value = fields.look(name).cloned();
        map.extend(value.map(|value| ((*name).to_owned(), value)));
    }
    Some(map)
}
