//! A template is written down again before it is compiled (`rewritten`); it must say what it said.
#![forbid(unsafe_code)]

use gguf::{Array, Metadata, Value};
use minijinja::syntax::SyntaxConfig;
use minijinja::{Environment, ErrorKind, context};
use tokenizer::{Chat, ChatTemplate, Error, Message};

const NAME: &str = "tokenizer.chat_template";

fn messages() -> Vec<Message> {
    let said = [
        ("system", " Be \"brief\".\n"),
        ("user", "a < b && {{ c }}?"),
        ("assistant", "x|y"),
        ("user", "\u{e9}\\n"),
    ];
    said.map(|(role, content)| Message::new(role, content))
        .into()
}

fn file(template: &str) -> Metadata {
    let tokens = ["<s>", "</s>"].map(str::to_owned).to_vec();
    let mut writer = testkit::Writer::new();
    writer.key("tokenizer.ggml.tokens", Value::Array(Array::String(tokens)));
    writer.key("tokenizer.ggml.bos_token_id", Value::U32(0));
    writer.key("tokenizer.ggml.eos_token_id", Value::U32(1));
    writer.key(NAME, Value::String(template.into()));
    let path = tempfile::NamedTempFile::new().unwrap();
    writer.write(path.path()).unwrap();
    Metadata::open(path.path()).unwrap()
}

/// By the engine alone, as it stands.
fn as_it_stands(source: &str) -> Result<String, String> {
    let mut environment = Environment::new();
    let syntax = SyntaxConfig::builder()
        .trim_blocks(true)
        .lstrip_blocks(true)
        .build();
    environment.set_syntax(syntax.unwrap());
    environment.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
    environment.set_auto_escape_callback(|_| minijinja::AutoEscape::None);
    environment.add_function("raise_exception", |reason: String| -> Result<String, _> {
        Err(minijinja::Error::new(ErrorKind::InvalidOperation, reason))
    });
    let said = |error: minijinja::Error| error.to_string();
    environment
        .add_template_owned(NAME, source.to_owned())
        .map_err(said)?;
    let messages = messages().into_iter();
    let messages = messages.map(|it| context! { role => it.role, content => it.content });
    let context = context! {
        messages => messages.collect::<Vec<_>>(), add_generation_prompt => true,
        bos_token => "<s>", eos_token => "</s>",
    };
    environment
        .get_template(NAME)
        .unwrap()
        .render(context)
        .map_err(said)
}

fn assert_same(source: &str) {
    let expected = as_it_stands(source);
    let template = ChatTemplate::from_gguf(&file(source));
    let got = template.and_then(|template| template.render(&Chat::new(messages())));
    match (&got, &expected) {
        (Ok(got), Ok(expected)) => assert_eq!(got, expected, "{source}"),
        (Err(Error::Refused(reason)), Err(error)) => assert!(error.contains(reason), "{source}"),
        (Err(Error::Template(got)), Err(error)) => assert_eq!(got, error, "{source}"),
        _ => panic!("{got:?} and not {expected:?}: {source}"),
    }
}

/// With these in it.
const SETS: &str = "{% set n = 7 %}{% set f = 2.5 %}{% set l = [3, 1, 2] %}\
                    {% set m = {'a': 1, 'b': [1, 2]} %}{% set s = 'abc' %}";

#[test]
fn expressions_hold_together_as_they_did() {
    for expression in [
        "1 + 2 * 3 - 4 ~ 5 ~ 6 * 2",
        "(1 + 2) * 3 - (4 - (5 - 6))",
        "2 ** 3 ** 2 + -n ** 2 - -(n - 1)",
        "10 // 3 % 2 / 4",
        "not n == 7 or n > 3 and not (f < 1)",
        "1 < n <= 7 != 3",
        "3 in l and 9 not in l",
        "(l + [n, [4, 5]]) | length",
        "l | sort | join(', ') | upper",
        "l | sort(reverse=true) | first",
        "-f | abs",
        "(-f) | abs ~ '!'",
        "s[1:] ~ s[::-1] ~ s[:2] ~ s[0] ~ s[-1]",
        "l[0] + l[n - 6]",
        "m['b'][1] + m.b[0]",
        "m == {'a': 1, 'b': [1, 2]}",
        "{'a': n, s: [l, m]}[s][0]",
        "(1, n, 'x') | list",
        "(n,) | length",
        "() | length",
        "'yes' if n is odd else 'no' if n else 'never'",
        "('a' if n > 9) is defined",
        "x is not defined and x is undefined",
        "n is divisibleby 7",
        "n is eq(7) and l is iterable and m is mapping and not (s is number)",
        "s.upper() ~ s.replace('a', 'b').strip() ~ ' a b '.split(' ') | length",
        "messages[0]['content'].strip() + messages[1].content | trim",
        "messages | selectattr('role', 'equalto', 'user') | map(attribute='content') | list",
        "messages | rejectattr('role', '==', 'user') | list | length",
        "'%s and %d' | format(s, n) ~ '{} {}'.format(s, n)",
        "m | tojson ~ m.items() | list",
        "[1, 2.5, none, true, false, 'a\"b\\\\c\\n'] | tojson",
        "100000000000000000000 + 1e3 + 0.5",
        "range(3) | list + [dict(a=1)]",
        "l | map('string') | join ~ l | sum",
        "[l, l, [1]] | unique | list | length",
        "'a' 'b' ~ \"c'd\"",
        "(s ~ n) | length + 1",
        "raise_exception('no')",
        "x.y.z",
    ] {
        assert_same(&format!("{SETS}{{{{ {expression} }}}}"));
        assert_same(&format!(
            "{SETS}{{% set v = {expression} %}}\n\n [{{{{ v }}}}]"
        ));
        assert_same(&format!(
            "a\n{{% if {expression} %}}\n yes\n{{%- else %}}no{{% endif %}}\n"
        ));
    }
}

#[test]
fn statements_say_what_they_said() {
    for template in [
        "{% for k, v in m.items() %}{{ loop.index }}{{ k }}={{ v }};{% else %}none{% endfor %}",
        "{% for x in l if x > 1 %}{{ x }}{% if loop.last %}.{% endif %}{% endfor %}",
        "{% for x in [] %}{% else %}none{% endfor %}",
        "{% for x in l recursive %}{{ x }}{% if x == 3 %}{{ loop([1]) }}{% endif %}{% endfor %}",
        "{% for x in l %}{% if x == 1 %}{% continue %}{% elif x == 2 %}{% break %}{% endif %}{{ x }}{% endfor %}",
        "{% for x in l %}{{ loop.cycle('a', 'b') }}{{ loop.previtem }}{% endfor %}",
        "{% macro m(a, b=2, c='x' ~ n) %}{{ a }}{{ b }}{{ c }}{% endmacro %}{{ m(1) }}{{ m(1, c=3) }}",
        "{% macro m(x) %}<{{ caller(x) }}>{% endmacro %}{% call(y) m(n) %}{{ y }}!{% endcall %}",
        "{% set ns = namespace(a=1, l=[]) %}{% for x in l %}{% set ns.a = ns.a + x %}\
         {% set ns.l = ns.l + [x] %}{% endfor %}{{ ns.a }}{{ ns.l }}",
        "{% set x, y = 1, l %}{{ x }}{{ y }}{% set z %}<{{ n }}>{% endset %}{{ z }}",
        "{% set z | upper | trim %} a {{ s }} {% endset %}{{ z }}",
        "{% with a=1, b=[2] %}{{ a }}{{ b }}{% endwith %}",
        "{% filter upper | replace('A', 'B') %}abc{{ s }}{% endfilter %}",
        "{% raw %}{{ no }}{% endraw %}{# nothing #}\n  {%- if true -%}  x  {%- endif %}\n",
        "{% autoescape false %}{{ '<' }}{% endautoescape %}",
        "{% do l.append(1) %}",
        "a\n\nb {{ 1 +\n }}",
        "a\n\n{{ n\n + 1 }}\n{{ no_such() }}",
        "{% for x in l %}\n\n{{ x | no_such }}{% endfor %}",
    ] {
        assert_same(&format!("{SETS}{template}"));
    }
}

/// `tojson` is Hugging Face's, not the engine's, which writes for pages. What is expected here was said
/// by Python's `jinja2` 3.1.6 with the filter of `transformers`: `json.dumps(x, ensure_ascii=False)`.
#[test]
fn json_is_as_it_was_trained_on() {
    for (template, expected) in [
        (
            "{{ messages | tojson }}",
            concat!(
                r#"[{"role": "system", "content": " Be \"brief\".\n"}, "#,
                r#"{"role": "user", "content": "a < b && {{ c }}?"}, "#,
                r#"{"role": "assistant", "content": "x|y"}, {"role": "user", "content": "é\\n"}]"#,
            ),
        ),
        (
            "{{ messages[1] | tojson(indent=2) }}",
            "{\n  \"role\": \"user\",\n  \"content\": \"a < b && {{ c }}?\"\n}",
        ),
        (
            "{{ {'b': '<|im_end|>', 'a': [1, 2.5, none, {}, []]} | tojson(ensure_ascii=False) }}",
            r#"{"b": "<|im_end|>", "a": [1, 2.5, null, {}, []]}"#,
        ),
        (
            r#"{{ "it's \\u003c \\\\u003c \\" | tojson }}"#,
            r#""it's \\u003c \\\\u003c \\""#,
        ),
        (
            "{{ {} | tojson(indent=4) }}{{ '<' | tojson ~ '>' }}",
            r#"{}"<">"#,
        ),
        ("{% for k in {'b': 1, 'a': 2} %}{{ k }}{% endfor %}", "ba"),
    ] {
        let template = ChatTemplate::from_gguf(&file(template)).unwrap();
        let got = template.render(&Chat::new(messages())).unwrap();
        assert_eq!(got, expected);
    }
    let ascii = file("{{ messages | tojson(ensure_ascii=True) }}");
    let refused = ChatTemplate::from_gguf(&ascii).unwrap();
    let refused = refused.render(&Chat::new(messages())).unwrap_err();
    assert!(refused.to_string().contains("ensure_ascii"), "{refused}");
}

/// As the models have them, in essence.
#[test]
fn templates_in_use_say_what_they_said() {
    for template in [
        "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\\n' + message['content'] \
         + '<|im_end|>' + '\\n'}}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}\
         {% endif %}",
        "{% set loop_messages = messages %}{% for message in loop_messages %}{% set content = \
         '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n'+ message['content'] | trim + \
         '<|eot_id|>' %}{% if loop.index0 == 0 %}{% set content = bos_token + content %}{% endif %}\
         {{ content }}{% endfor %}{{ '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}",
        "{%- if messages[0]['role'] == 'system' %}\n    {%- set system_message = messages[0]['content'] %}\n    \
         {%- set loop_messages = messages[1:] %}\n{%- else %}\n    {%- set loop_messages = messages %}\n\
         {%- endif %}\n{{- bos_token }}\n{%- for message in loop_messages %}\n    {%- if (message['role'] \
         == 'user') != (loop.index0 % 2 == 0) %}\n        {{- raise_exception('roles must alternate') }}\n    \
         {%- endif %}\n    {%- if message['role'] == 'user' %}\n        {%- if loop.first and system_message \
         is defined %}\n            {{- ' [INST] ' + system_message + '\\n\\n' + message['content'] + \
         ' [/INST]' }}\n        {%- else %}\n            {{- ' [INST] ' + message['content'] + ' [/INST]' }}\n\
         {%- endif %}\n    {%- elif message['role'] == 'assistant' %}\n        {{- ' ' + message['content'] \
         + eos_token}}\n    {%- endif %}\n{%- endfor %}\n",
        "{%- set ns = namespace(is_first=false, system_prompt='', tools=[]) -%}{%- for message in messages %}\
         {%- if message['role'] == 'system' %}{%- set ns.system_prompt = ns.system_prompt ~ \
         message['content'] %}{%- endif %}{%- endfor %}{{ bos_token }}{{ ns.system_prompt }}\
         {%- for message in messages %}{%- if message['role'] == 'user' %}{%- set ns.is_first = true -%}\
         {{ '<|User|>' ~ message['content'] }}{%- endif %}{%- if message['role'] == 'assistant' and \
         message['content'] is not none %}{% set content = message['content'].split('</think>')[-1] %}\
         {{ '<|Assistant|>' ~ content ~ '<|end|>' }}{%- endif %}{%- endfor -%}",
        "{%- set merged = namespace(messages=[]) %}{%- for m in messages %}{%- if loop.index0 > 0 and \
         m.role == messages[loop.index0 - 1].role %}{%- set merged.messages = merged.messages[:-1] + \
         [{'role': m.role, 'content': merged.messages[-1].content ~ m.content}] %}{%- else %}\
         {%- set merged.messages = merged.messages + [{'role': m.role, 'content': m.content}] %}\
         {%- endif %}{%- endfor %}{%- for m in merged.messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}",
        "{%- macro say(role, text) -%}\n<|{{ role }}|>\n{{ text }}{% if not text.endswith('\\n') %}\n{% endif %}\
         {%- endmacro -%}\n{% for m in messages if m.role in ['user', 'assistant'] %}\n{{ say(m.role, \
         m.content | trim) }}{% endfor %}",
    ] {
        assert_same(template);
    }
}

#[test]
fn what_is_no_chat_template_is_refused() {
    for template in [
        "{% include 'x' %}",
        "{% extends 'x' %}",
        "{% block b %}{% endblock %}",
    ] {
        let refused = ChatTemplate::from_gguf(&file(template));
        assert!(matches!(refused, Err(Error::Template(_))), "{template}");
    }
}
