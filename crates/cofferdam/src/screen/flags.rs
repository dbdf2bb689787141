//! Which flags stand under which heading, and their words in `-h`. Without words a flag stands in
//! `--help` only.

/// A heading, and the flags below it.
pub(super) type Group = (&'static str, &'static [(&'static str, &'static str)]);

/// The groups of a subcommand that has many flags.
pub(super) fn groups(command: &str) -> Option<&'static [Group]> {
    Some(match command {
        "serve" => SERVE,
        "prefill" => PREFILL,
        "decode" => DECODE,
        "gateway" => GATEWAY,
        "gate" => GATE,
        "probe" => PROBE,
        "watch" => WATCH,
        "canary" => CANARY,
        "bench" => BENCH,
        _ => return None,
    })
}

const MODEL: Group = (
    "Model and memory",
    &[
        (
            "model",
            "GGUF file; without it SmolLM2-135M-Instruct, fetched once",
        ),
        (
            "max-context",
            "Prompt and output together, in tokens [default: the model's]",
        ),
        (
            "pool-tokens",
            "KV pool of each worker, in tokens [default: from memory]",
        ),
        (
            "threads",
            "Compute threads of each worker [default: all cores]",
        ),
        ("numeric", "fast, or exact: float32, the reference"),
        ("page-size", ""),
        ("scrub", ""),
    ],
);

const WAITS: Group = (
    "Deadlines and caps",
    &[
        ("queue-deadline", ""),
        ("prefill-deadline", ""),
        ("transfer-deadline", ""),
        ("decode-deadline", ""),
        ("peer-deadline", ""),
        ("answer-deadline", ""),
        ("cancel-deadline", ""),
        ("cache-ttl", ""),
        (
            "tenant-tokens",
            "Tokens that one tenant may hold [default: no cap]",
        ),
        ("uncommitted-tokens", ""),
    ],
);

const ON_CALL: Group = (
    "On call",
    &[
        ("incidents", ""),
        ("incident-policy", ""),
        ("incidents-mib", ""),
        ("incidents-days", ""),
        ("canaries", ""),
        ("canary-every", ""),
        ("canary-tokens", ""),
        ("canary-percent", ""),
        ("canaries-at", ""),
        ("canaries-ca", ""),
        ("admin", ""),
        ("admin-keys", ""),
    ],
);

const API: Group = (
    "API",
    &[
        ("host", "Address that it listens on"),
        ("port", "Port; 0 picks a free one"),
        (
            "served-model-name",
            "Name of the model [default: from the file's name]",
        ),
        (
            "api-keys",
            "File of lines `tenant key` [default: everybody may ask]",
        ),
        ("rpm", ""),
        ("tpm", ""),
        ("tls-cert", "Certificate (PEM): HTTPS, and nothing else"),
        ("tls-key", ""),
        ("tls-client-ca", ""),
        ("request-deadline", "Longest time of a request"),
        (
            "silence-deadline",
            "Longest silence of a worker that owes something",
        ),
        ("require-evidence", ""),
        ("evidence-pub", ""),
        ("operator", ""),
        (
            "allow-origin",
            "Whose pages may ask in a browser [default: none]",
        ),
    ],
);

/// What `serve` has besides: of its gateway, under the same heading.
const API_KEY: Group = (
    "API",
    &[(
        "api-key",
        "A key; other users can see flags, so better a file",
    )],
);

const SERVE: &[Group] = &[
    MODEL,
    API,
    ON_CALL,
    API_KEY,
    (
        "Workers",
        &[
            ("prefill", "Number of prefill workers, each a process"),
            ("decode", "Number of decode workers, each a process"),
            ("fabric", "How KV pages travel: shared-memory or tcp"),
            ("in-process", "Everything in one process, without a handoff"),
        ],
    ),
    WAITS,
    (
        "Logs and settings",
        &[
            ("config", "TOML file with the names of these flags"),
            ("log-format", "text for people, json for programs"),
            ("access-log", "File for a line of JSON for each request"),
            ("otlp-endpoint", ""),
            (
                "audit-log",
                "File for integrity faults [default: standard error]",
            ),
            ("drain-seconds", "What running requests get at shutdown"),
            ("trace", ""),
            ("owners", ""),
        ],
    ),
];

const SETTINGS: Group = (
    "Logs and settings",
    &[
        ("config", "TOML file with the names of these flags"),
        ("log-format", "text for people, json for programs"),
        (
            "audit-log",
            "File for integrity faults [default: standard error]",
        ),
        ("drain-seconds", "What running requests get at shutdown"),
        ("trace", "File for a trace of the state machine"),
        ("owners", ""),
        ("until-stdin-closes", ""),
    ],
);

const PREFILL: &[Group] = &[
    (
        "Addresses",
        &[
            ("listen", "Where it is reached: unix:/path or tcp:host:port"),
            (
                "decode-at",
                "A decode worker to hand over to; once for each",
            ),
            ("certs", "Directory made by `cofferdam certs new`"),
        ],
    ),
    MODEL,
    WAITS,
    SETTINGS,
];

const DECODE: &[Group] = &[
    (
        "Addresses",
        &[
            ("listen", "Where it is reached: unix:/path or tcp:host:port"),
            (
                "data-listen",
                "Port for pages from other hosts [default: none]",
            ),
            (
                "data-advertise",
                "The same as others reach it (0.0.0.0, NAT)",
            ),
            ("fabric-dir", "Directory for sockets of landing arenas"),
            ("certs", "Directory made by `cofferdam certs new`"),
        ],
    ),
    MODEL,
    WAITS,
    SETTINGS,
];

const GATEWAY: &[Group] = &[
    (
        "Workers",
        &[
            ("prefill-at", "Address of a prefill worker; once for each"),
            ("decode-at", "Address of a decode worker; once for each"),
            ("certs", "Directory made by `cofferdam certs new`"),
            ("model", "GGUF file, for tokenizer and template"),
        ],
    ),
    API,
    ON_CALL,
    (
        "Logs and settings",
        &[
            ("config", "TOML file with the names of these flags"),
            ("log-format", "text for people, json for programs"),
            ("access-log", "File for a line of JSON for each request"),
            ("otlp-endpoint", ""),
            (
                "audit-log",
                "File for integrity faults [default: standard error]",
            ),
            ("drain-seconds", "What running requests get at shutdown"),
            ("trace", "File for a trace of the state machine"),
            ("owners", ""),
            ("until-stdin-closes", ""),
        ],
    ),
];

const GATE: &[Group] = &[
    (
        "Who is asked",
        &[
            ("prefill", "A prefill node; several may follow"),
            ("decode", "A decode node; several may follow"),
            ("server", "A server that answers alone; several may follow"),
            ("log", "Start-up log of a node; - is standard input"),
            ("config", "Fleet file (TOML): nodes, keys, groups, pools"),
            ("endpoints", "What kubectl get endpointslices -o json said"),
            ("prefill-selector", "Labels of prefill nodes in it"),
            ("decode-selector", "Labels of decode nodes in it"),
            ("server-selector", "Labels of servers in it"),
            ("endpoints-port", ""),
        ],
    ),
    (
        "Keys and certificates",
        &[
            ("key-env", "Variable that holds the key"),
            ("key-file", "File that holds the key"),
            ("ca", "Authorities of the nodes' certificates (PEM)"),
            ("cert", ""),
            ("cert-key", ""),
        ],
    ),
    (
        "What must hold",
        &[
            ("context", "A context that was promised, in tokens"),
            ("headroom", ""),
            ("strict", "Advisory checks must hold too"),
            ("allow", "Accept a check, for a reason that is printed"),
            ("since", "Baseline: what has changed is a violation"),
            ("save", "Write the present state as a baseline"),
            ("advisories", ""),
            ("list", "List all checks and end"),
            ("explain", "Explain one check and end"),
        ],
    ),
    (
        "Output",
        &[
            ("format", "table, json, sarif, junit or prometheus"),
            ("report", "Write a further report: junit=gate.xml"),
            ("timeout", ""),
            ("total-timeout", ""),
            ("interval", "Read again and again, and say what changes"),
            ("listen", ""),
        ],
    ),
];

const PROBE: &[Group] = &[
    (
        "Who asks",
        &[
            ("key-a", "Key of tenant A [default: no key]"),
            ("key-b", "Key of tenant B [default: A's]"),
            ("dialect", "completions, chat or generate (SGLang)"),
            ("model", "Model to ask for [default: the first]"),
            ("ca", "Authorities of the certificate (PEM)"),
        ],
    ),
    (
        "What is asked",
        &[
            (
                "suite",
                "Names, with commas [default: all that cannot hurt]",
            ),
            (
                "budget",
                "requests=500, tokens=2000000, time=10m; once for each",
            ),
            ("rate", "Requests a second, at most; 0 is no limit"),
            ("at-once", "Requests at the same time, at most"),
            ("hang", "Time after which no answer is a hang"),
            ("dry-run", "Say what would be sent, and send nothing"),
            ("seed", "Repeat the run of this seed"),
        ],
    ),
    (
        "What the server does not say",
        &[
            ("limit", "Most tokens of a prompt"),
            ("pool", "Tokens of the smallest KV pool"),
            ("context", "Tokens of the context that is advertised"),
            ("lora", "An adapter that it has, for suite prefix"),
            ("prefill", "The prefill worker behind it, for suite pair"),
            ("decode", "The decode worker behind it, for suite pair"),
        ],
    ),
    (
        "Output",
        &[
            ("format", "table, json, junit or html"),
            ("report", "Write a further report: junit=probe.xml"),
            ("no-shrink", ""),
            ("evidence-out", ""),
            ("evidence-key", ""),
        ],
    ),
];

const CANARY: &[Group] = &[
    (
        "The server",
        &[
            ("key-a", "Key of tenant A: a file, or env:NAME"),
            ("key-b", "Key of tenant B [default: A's]"),
            ("dialect", "completions, chat or generate"),
            ("model", "Model to ask for"),
            ("ca", "Authorities of its certificate (PEM)"),
            ("limit", "Most tokens of a prompt [default: what it says]"),
            ("prefill", "The prefill worker behind it, to be read"),
            ("decode", "The decode worker behind it, to be read"),
        ],
    ),
    (
        "How much",
        &[
            ("every", "Time between two steps"),
            ("tokens", "Tokens a minute"),
            ("steps", "End after so many [default: at a signal]"),
        ],
    ),
    (
        "What is done about it",
        &[
            ("incidents", "Journal that gets what is found"),
            ("incident-policy", "What leads to what (TOML)"),
        ],
    ),
];

const BENCH: &[Group] = &[
    (
        "What is measured",
        &[
            (
                "model",
                "GGUF file or folder [default: SmolLM2-135M-Instruct]",
            ),
            ("only", "Which of its parts"),
            ("rounds", "Times that each figure is taken, in turn"),
            ("threads", "Threads that compute"),
            ("prefill", "Lengths of prompts, in tokens"),
            ("depths", "Tokens before decode"),
            ("sequences", "Sequences at once, at the first of the depths"),
        ],
    ),
    (
        "Beside it",
        &[
            ("beside", "A Python with llama-cpp-python, or none"),
            ("plain-buffers", "llama.cpp without repacked weights"),
        ],
    ),
    (
        "Written",
        &[
            ("json", "File for all figures"),
            ("plot", "File for a picture (SVG)"),
        ],
    ),
];

const WATCH: &[Group] = &[
    (
        "What is read",
        &[
            (
                "log",
                "Access log, a JSON object a line; - is standard input",
            ),
            ("follow", "Go on as it grows, and print events"),
            (
                "config",
                "Where the figures stand in a line [default: our log]",
            ),
            (
                "preset",
                "A known format of log [default: by its first lines]",
            ),
            ("scrape", "An engine's /metrics, every 15 s: a coarse alarm"),
            ("state", "File that keeps what was learned"),
        ],
    ),
    (
        "What is judged",
        &[
            ("limit", "Most tokens that a prompt may have"),
            (
                "test-tenant",
                "Tenant of tests: not learned from, not affected",
            ),
            (
                "tolerance",
                "Share of the floor below which it is too fast [default: 0.5]",
            ),
        ],
    ),
    (
        "Output",
        &[
            ("format", "table or json"),
            ("plot", "A drawing: a file that ends in .svg or .html"),
            ("listen", "Where counters for Prometheus are served"),
            ("rules", "Print alert rules for Prometheus and end"),
        ],
    ),
];
