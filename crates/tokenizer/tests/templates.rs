//! Templates come with a file that anybody may have made. One test, because memory is the process's.
#![forbid(unsafe_code)]

use gguf::{Array, Metadata, Value};
use tokenizer::{Chat, ChatTemplate, Error, FUEL_BYTES, Message, TEMPLATE_FUEL, Tokenizer};

fn file(template: &str) -> Metadata {
    let strings =
        |all: &[&str]| Value::Array(Array::String(all.iter().map(|s| (*s).to_owned()).collect()));
    let mut writer = testkit::Writer::new();
    writer.key("tokenizer.ggml.model", Value::String("gpt2".into()));
    writer.key("tokenizer.ggml.pre", Value::String("gpt-2".into()));
    writer.key("tokenizer.ggml.tokens", strings(&["a", "<|end|>"]));
    writer.key("tokenizer.ggml.merges", strings(&[]));
    writer.key(
        "tokenizer.ggml.token_type",
        Value::Array(Array::I32(vec![1, 3])),
    );
    writer.key("tokenizer.chat_template", Value::String(template.into()));
    let path = tempfile::NamedTempFile::new().unwrap();
    writer.write(path.path()).unwrap();
    Metadata::open(path.path()).unwrap()
}

/// Renders on a thread with as little stack as those have that serve requests.
fn render(template: &str, content: &str, bytes_max: usize) -> Result<usize, Error> {
    let metadata = file(template);
    let messages = [Message::new("user", content)];
    let thread = std::thread::Builder::new().stack_size(2 << 20);
    let run = move || {
        let template = ChatTemplate::from_gguf(&metadata)?;
        let tokenizer = Tokenizer::from_gguf(&metadata)?;
        let tokens = template.render_chat(&tokenizer, &Chat::new(messages), bytes_max)?;
        Ok(tokens.len())
    };
    thread
        .spawn(run)
        .unwrap()
        .join()
        .expect("it does not panic")
}

/// Lists in lists, which share all but their two places, and 2^60 elements to whoever walks them.
macro_rules! NESTED {
    ($end:literal) => {
        concat!(
            "{% set ns = namespace(l=[1]) %}{% for i in range(60) %}",
            "{% set ns.l = [ns.l, ns.l] %}{% endfor %}",
            $end
        )
    };
}

/// Two of them, equal and apart.
macro_rules! TWICE {
    ($end:literal) => {
        concat!(
            "{% set ns = namespace(l=[1], k=[1]) %}{% for i in range(60) %}",
            "{% set ns.l = [ns.l, ns.l] %}{% set ns.k = [ns.k, ns.k] %}{% endfor %}",
            $end
        )
    };
}

/// Every way that a template has to make much of little, each of which would make 100 MB or far
/// more.
const GREEDY: &[(&str, &str)] = &[
    ("multiplied", "{{ 'a' * 100000000 }}"),
    (
        "multiplied, not written",
        "{% set x = 'a' * 100000000 %}{{ x|length }}",
    ),
    (
        "multiplied by a message",
        "{{ messages[0].content * 100000000 }}",
    ),
    ("multiplied twice", "{{ ('a' * 1000000) * 1000000 }}"),
    (
        "many multiplied",
        "{% for i in range(1000) %}{% set x = 'a' * 1000000 %}{% endfor %}",
    ),
    (
        "kept",
        "{% set ns = namespace(l=[]) %}{% for i in range(1000) %}\
        {% set ns.l = ns.l + ['a' * 1000000 ~ i] %}{% endfor %}{{ ns.l|length }}",
    ),
    (
        "doubled",
        "{% set ns = namespace(s='0123456789') %}{% for i in range(60) %}\
        {% set ns.s = ns.s ~ ns.s %}{% endfor %}",
    ),
    (
        "added",
        "{% set ns = namespace(s='0123456789') %}{% for i in range(60) %}\
        {% set ns.s = ns.s + ns.s %}{% endfor %}",
    ),
    (
        "captured",
        "{% set ns = namespace(s='0123456789') %}{% for i in range(60) %}\
        {% set x %}{{ ns.s }}{{ ns.s }}{% endset %}{% set ns.s = x %}{% endfor %}",
    ),
    (
        "macro",
        "{% macro m(s) %}{{ s }}{{ s }}{% endmacro %}{% set ns = namespace(s='0123456789') %}\
        {% for i in range(60) %}{% set ns.s = m(ns.s) %}{% endfor %}",
    ),
    ("replace", "{{ ('a' * 100000)|replace('a', 'b' * 100000) }}"),
    (
        "replace of nothing",
        "{{ ('a' * 100000)|replace('', 'b' * 100000) }}",
    ),
    (
        ".replace",
        "{{ ('a' * 100000).replace('a', 'b' * 100000) }}",
    ),
    (
        ".replace of nothing",
        "{{ ('a' * 100000).replace('', 'b' * 100000) }}",
    ),
    ("join", "{{ range(100000)|join('a' * 100000) }}"),
    (
        ".join",
        "{{ ('a' * 100000).join(range(100000)|map('string')|list) }}",
    ),
    (
        "join of one string",
        "{{ ('a' * 100000)|join('b' * 100000) }}",
    ),
    ("format", "{{ '%1000000000d'|format(1) }}"),
    ("format with a width", "{{ '%*d'|format(1000000000, 1) }}"),
    (
        "format with a precision",
        "{{ '%.1000000000f'|format(1.5) }}",
    ),
    (".format", "{{ '{:>1000000000}'.format('a') }}"),
    (
        ".format by an argument",
        "{{ '{:{}}'.format('a', 1000000000) }}",
    ),
    ("format of lists", NESTED!("{{ '%s'|format(ns.l) }}")),
    (".format of lists", NESTED!("{{ '{}'.format(ns.l) }}")),
    (".join of lists", NESTED!("{{ ''.join([ns.l]) }}")),
    (".join of a long list", "{{ ''.join(['a'] * 1000000000) }}"),
    (
        ".count of a long list",
        "{{ ([1] * 10000000000).count(1) }}",
    ),
    (
        ".strip of many",
        "{{ ('a' * 1000000).strip('b' * 1000000 ~ 'a') }}",
    ),
    (
        ".startswith many",
        "{{ 'a'.startswith(['b'] * 10000000000) }}",
    ),
    ("in a long list", "{{ 2 in [1] * 10000000000 }}"),
    ("sum", "{{ ([1] * 10000000000)|sum }}"),
    ("percent of a width", "{{ '%1000000000d' % 1 }}"),
    (
        ".format of many",
        "{{ ('{0}' * 10000).format('a' * 100000) }}",
    ),
    (
        "format of many",
        "{{ ('%(a)s' * 10000)|format(a='a' * 100000) }}",
    ),
    ("indent", "{{ ('\n' * 100000)|indent(100000) }}"),
    (
        "indent by a string",
        "{{ ('a\n' * 100000)|indent('a' * 100000) }}",
    ),
    ("list", "{{ ([1] * 1000000000)|list|length }}"),
    ("list written", "{{ [1] * 1000000000 }}"),
    ("list sorted", "{{ ([1] * 1000000000)|sort|length }}"),
    (
        "lists of lists",
        "{% set ns = namespace(l=[1]) %}{% for i in range(60) %}\
        {% set ns.l = [ns.l, ns.l] %}{% endfor %}{{ ns.l }}",
    ),
    (
        "lists of lists in JSON",
        "{% set ns = namespace(l=[1]) %}{% for i in range(60) %}\
        {% set ns.l = [ns.l, ns.l] %}{% endfor %}{{ ns.l|tojson }}",
    ),
    (
        "maps of maps in JSON",
        "{% set ns = namespace(l={}) %}{% for i in range(60) %}\
        {% set ns.l = {'a': ns.l, 'b': ns.l} %}{% endfor %}{{ ns.l|tojson(indent=8) }}",
    ),
    ("wide JSON", "{{ [1, 2, 3]|tojson(indent=1000000000) }}"),
    (
        "lists joined",
        "{% set ns = namespace(l=[1]) %}{% for i in range(40) %}\
        {% set ns.l = (ns.l + ns.l)|list %}{% endfor %}{{ ns.l|length }}",
    ),
    (
        "lists made equal",
        "{% set ns = namespace(l=[1]) %}{% for i in range(60) %}\
        {% set ns.l = [ns.l, ns.l] %}{% endfor %}{{ ns.l == [ns.l[0], ns.l[1]] }}{{ ns.l }}",
    ),
    ("batch", "{{ [1]|batch(1000000000, 'a')|list|length }}"),
    ("slice", "{{ [1]|slice(1000000000, 'a')|list|length }}"),
    ("range", "{{ range(1000000000000)|list|length }}"),
    (
        "ranges",
        "{% for i in range(100000) %}{% set x = range(100000)|list %}{% endfor %}",
    ),
    (
        "split",
        "{% for i in range(1000) %}{% set x = ('a ' * 100000).split(' ') %}{% endfor %}",
    ),
    (
        "characters",
        "{% for i in range(1000) %}{% set x = ('a' * 100000)|list %}{% endfor %}",
    ),
    ("escapes", "{{ ('<' * 30000000)|escape }}"),
    ("percent", "{{ ('\u{e9}' * 15000000)|urlencode }}"),
    (
        "upper",
        "{% for i in range(1000) %}{% set x = ('a' * 1000000)|upper %}{% endfor %}",
    ),
    (
        ".upper",
        "{% for i in range(1000) %}{% set x = ('a' * 1000000).upper() %}{% endfor %}",
    ),
    (
        "loops",
        "{% for i in range(100000) %}{% for j in range(100000) %}a{% endfor %}{% endfor %}",
    ),
    (
        "recursion",
        "{% macro m() %}{{ m() }}{{ m() }}{% endmacro %}{{ m() }}",
    ),
    (
        "many messages",
        "{% for i in range(100000) %}{{ messages[0].content }}{% endfor %}",
    ),
    ("said", "{{ raise_exception('a' * 50000000) }}"),
    ("lists after a text", TWICE!("{{ 'a' ~ ns.l }}")),
    ("lists before a text", TWICE!("{{ ns.l ~ 'a' }}")),
    ("equal lists", TWICE!("{{ ns.l == ns.k }}")),
    ("lists in order", TWICE!("{{ ns.l <= ns.k < [ns.l] }}")),
    ("a list in lists", TWICE!("{{ ns.l in [ns.k] }}")),
    ("lists as keys", TWICE!("{{ {ns.l: 1, ns.k: 2}[ns.l] }}")),
    ("lists sorted", TWICE!("{{ [ns.l, ns.k]|sort|length }}")),
    (
        "lists but once",
        TWICE!("{{ [ns.l, ns.k]|unique|list|length }}"),
    ),
    ("the largest list", TWICE!("{{ [ns.l, ns.k]|max }}")),
    ("lists as text", TWICE!("{{ ns.l|string|length }}")),
    (
        "lists as texts",
        TWICE!("{{ [ns.l]|map('string')|list|length }}"),
    ),
    ("lists for people", TWICE!("{{ ns.l|pprint|length }}")),
    (
        "lists joined by a text",
        TWICE!("{{ [ns.l, 1]|join('a')|length }}"),
    ),
    ("a test for equality", TWICE!("{{ ns.l is eq(ns.k) }}")),
    ("a test for a place", TWICE!("{{ ns.l is in([ns.k]) }}")),
    (
        "chosen by equality",
        TWICE!("{{ [ns.l]|select('eq', ns.k)|list|length }}"),
    ),
    ("counted lists", TWICE!("{{ [ns.l, 1].count(ns.k) }}")),
    (
        "lists that are replaced",
        TWICE!("{{ 'a'|replace('a', ns.l) }}"),
    ),
    ("lists said", TWICE!("{{ raise_exception(ns.l) }}")),
    (
        "a list that repeats as text",
        "{{ [1] * 10000000000 ~ 'a' }}",
    ),
    (
        "lists that repeat, compared",
        "{{ [[1] * 10000000000] == [[1] * 10000000000] }}",
    ),
    (
        "a character far behind",
        "{% set a = 'a' * 30000000 %}{% for i in range(90000) %}{% set x = a[29999999] %}{% endfor %}",
    ),
    (
        "a character from the end",
        "{% set a = '\u{e9}' * 15000000 %}{% for i in range(90000) %}{% set x = a[-14999999] %}{% endfor %}",
    ),
    (
        "the end of a text",
        "{% set a = '\u{e9}' * 15000000 %}{% for i in range(90000) %}{% set x = a[14999998:] %}{% endfor %}",
    ),
    (
        "a test of every character",
        "{% set a = 'a' * 15000000 %}{% for i in range(90000) %}{% if a is lower %}{% endif %}{% endfor %}",
    ),
    (
        "texts that are compared",
        "{% set a = 'a' * 15000000 %}{% set b = 'a' * 15000000 %}\
        {% for i in range(90000) %}{% if a == b %}{% endif %}{% endfor %}",
    ),
    (
        "lists put together",
        "{% set ns = namespace(l=[1]) %}{% for i in range(60) %}\
        {% set ns.l = ns.l|chain(ns.l) %}{% endfor %}{{ ns.l|length }}",
    ),
    (
        "maps put together",
        "{% set ns = namespace(m={'a': 1}) %}{% for i in range(60) %}\
        {% set ns.m = ns.m|chain(ns.m) %}{% endfor %}{{ ns.m ~ 'a' * 100000000 }}",
    ),
    (
        "lists put together in a macro",
        "{% macro m(l, n) %}{% if n %}{{ m(l|chain(l), n - 1) }}{% else %}{{ l|length }}{% endif %}\
        {% endmacro %}{{ m([1], 60) }}",
    ),
    (
        "lists put together by name",
        "{% set ns = namespace(l=[[1]]) %}{% for i in range(60) %}\
        {% set ns.l = ns.l|map('chain', ns.l[0]) %}{% endfor %}{{ ns.l[0]|length }}",
    ),
    (
        "lists put together by name with nothing",
        "{% set ns = namespace(l=[range(10)|list]) %}{% for i in range(100000) %}\
        {% set ns.l = ns.l|map('chain', []) %}{% endfor %}{{ ns.l[0]|length }}",
    ),
    (
        "filters by name in filters by name",
        "{{ 'a'|map(*(['map'] * 10000))|list|length }}",
    ),
    (
        "texts in lists that are compared",
        "{% set a = ['a' * 1000000] %}{% set b = ['a' * 1000000] %}\
        {% for i in range(5000) %}{% if a == b %}{% endif %}{% endfor %}",
    ),
    (
        "a list that grows by one",
        "{% set ns = namespace(l=[1]) %}{% for i in range(100000) %}\
        {% set ns.l = ns.l + [1] %}{% endfor %}{{ ns.l|length }}",
    ),
    (
        "a list that is cut again and again",
        "{% set ns = namespace(l=range(10)) %}{% for i in range(100000) %}\
        {% set ns.l = ns.l[0:] %}{% endfor %}{{ ns.l|length }}",
    ),
    (
        "a list of the namespace that has it",
        "{% set ns = namespace() %}{% set ns.l = [ns] %}{{ ns.l ~ 'a' }}",
    ),
    (
        "a namespace in itself, and no more",
        "{% set ns = namespace() %}{% set ns.a = ns %}",
    ),
    (
        "a namespace in itself",
        "{% set ns = namespace() %}{% set ns.a = ns %}{{ ns ~ 'a' }}",
    ),
    (
        "two namespaces in each other",
        "{% set a = namespace() %}{% set b = namespace(a=a) %}{% set a.b = {'b': b} %}{{ a ~ 'a' }}",
    ),
    (
        "a macro that is given lists of lists",
        "{% macro m(l, n) %}{% if n %}{{ m([l, l], n - 1) }}{% else %}{{ l ~ 'a' }}{% endif %}\
        {% endmacro %}{{ m([1], 60) }}",
    ),
    (
        "a loop in itself over lists of lists",
        "{% for l in [1] recursive %}{{ loop([[l, l]]) if loop.depth < 60 else l ~ 'a' }}{% endfor %}",
    ),
    (
        "lists of lists by filters",
        "{% set ns = namespace(l=[1]) %}{% for i in range(60) %}\
        {% set ns.l = (ns.l + ns.l)|batch(2)|list %}{% endfor %}{{ ns.l ~ 'a' }}",
    ),
];

#[test]
fn no_template_takes_more_than_its_memory() {
    let before = testkit::memory::peak();
    for (name, template) in GREEDY {
        let short = render(template, "hi", 100_000);
        match &short {
            Err(error) => assert!(error.to_string().len() < 2000, "{name}: a long error"),
            Ok(_) => panic!("{name}: it made what it should not: {short:?}"),
        }
        let more = testkit::memory::peak() - before;
        // A filter that escapes makes up to six bytes of each before they are counted.
        let most = 6 * (TEMPLATE_FUEL * FUEL_BYTES) as usize;
        assert!(more < most, "{name}: {} MB", more / 1_000_000);
    }
    // Line by line, with no loop: each doubles what the one before it has.
    for twice in ["l + l", "l|chain(l)", "(l|chain(l))[0:]"] {
        let lines = format!("{{% set l = {twice} %}}").repeat(60);
        let error = render(
            &format!("{{% set l = [1] %}}{lines}{{{{ l|length }}}}"),
            "hi",
            9,
        );
        assert!(
            matches!(error, Err(Error::TemplateFuel)),
            "{twice}: {error:?}"
        );
    }
    let lines = "{% set l = l|chain([]) %}".repeat(2500);
    let error = render(&format!("{{% set l = range(600)|list %}}{lines}"), "hi", 9);
    assert!(matches!(error, Err(Error::TemplateFuel)), "{error:?}");
    // A long list, in so many places of one that nobody would come to its end.
    let places = "l,".repeat(40_000);
    let error = render(
        &format!("{{% set l = range(99999)|list %}}{{{{ [{places}]|length }}}}"),
        "hi",
        9,
    );
    assert!(matches!(error, Err(Error::TemplateFuel)), "{error:?}");
    // Constants that are put together while the template is compiled.
    let terms = vec![format!("'{}'", "a".repeat(120)); 990].join(" ~ ");
    assert!(render(&format!("{{{{ {terms} }}}}"), "hi", 990 * 120).is_ok());
    // A hundred lists in each other, and one more.
    for (lists, deep) in [(100, false), (101, true)] {
        let deeper = format!(
            "{{% set ns = namespace(l=1) %}}{{% for i in range({lists}) %}}{{% set ns.l = [ns.l] %}}{{% endfor %}}",
        );
        let made = render(&deeper, "hi", 9);
        let refused =
            matches!(&made, Err(error) if error.to_string().contains("nested too deeply"));
        assert_eq!((refused, made.is_err()), (deep, deep), "{lists}: {made:?}");
    }
    // In a hundred lists at a time, which would be half a million in the end.
    let deeper = format!(
        "{{% set ns = namespace(l=[1]) %}}{{% for i in range(100000) %}}{{% set ns.l = {}ns.l{} %}}{{% endfor %}}",
        "[".repeat(90),
        "]".repeat(90)
    );
    assert!(render(&deeper, "hi", 100_000).is_err());
    // Expressions in each other as far as a template goes, which is compiled where there is little stack.
    let longest = 128 * 1024 - 100;
    for (open, part, close) in [
        ("{{ 1", "+1", " }}"),
        ("{{ 1", "~1", " }}"),
        ("{{ a", "+a", " }}"),
        ("{{ 1", "|d", " }}"),
        ("{{ messages", ".a", " }}"),
        ("{{ messages", "[0]", " }}"),
        ("{{ messages", "()", " }}"),
        ("{{ ", "-", "1 }}"),
        ("{{ ", "not ", "1 }}"),
        ("{{ 1", " is a", " }}"),
        ("{{ ", "1 if 0 else ", "1 }}"),
        ("{% if 0 %}", "{%elif 0%}", "{% endif %}"),
    ] {
        let long = format!("{open}{}{close}", part.repeat(longest / part.len()));
        let error = render(&long, "hi", 100_000).unwrap_err().to_string();
        let said = error.contains("in each other") || error.contains("recursion limits");
        assert!(said, "{part}: {error}");
    }
    let error = render(&"a".repeat(longest + 101), "hi", 100_000).unwrap_err();
    let said = error.to_string();
    assert!(
        said.contains("131073 bytes, at most 131072 are read"),
        "{said}"
    );
    assert!(render(&"a".repeat(longest + 100), "hi", 1 << 20).is_ok());
    // Nested so deeply that its end is a long way down, on a small stack.
    let nested = "{% set ns = namespace(l=[1]) %}{% for i in range(100000) %}\
        {% set ns.l = [ns.l] %}{% endfor %}";
    for use_of_it in [
        "",
        "{{ ns.l }}",
        "{{ ns.l|tojson }}",
        "{{ ns.l == ns.l[0] }}",
    ] {
        let _ = render(&format!("{nested}{use_of_it}"), "hi", 100_000);
    }
    // Bytes of text: to the byte, and the marks that guard a message are not counted.
    let twice = "{{ messages[0].content }}{{ messages[0].content }}";
    for said in ["aaaaa", "<|<|a"] {
        assert!(render(twice, said, 10).is_ok(), "{said}");
        let error = render(twice, said, 9).unwrap_err();
        assert!(
            matches!(error, Error::TemplateText { given: 5, limit: 9 }),
            "{error}"
        );
    }
}
