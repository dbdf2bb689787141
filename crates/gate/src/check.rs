//! The checks: stable ids, why each exists, what to do when it fails.
//!
//! Ids are an interface: they are written into `--allow`, CI configurations and alerts. A check
//! may be added; an id is never reused for another question.

/// Whether a check must hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// Printed; fails only with `--strict`.
    Advisory,
    /// Violated or unknown fails.
    Required,
}

impl Level {
    /// `required` or `advisory`.
    pub fn word(self) -> &'static str {
        match self {
            Level::Required => "required",
            Level::Advisory => "advisory",
        }
    }
}

/// One question that is put to a fleet.
#[derive(Debug, PartialEq, Eq)]
pub struct Check {
    /// Stable, kebab-case.
    pub id: &'static str,
    /// Whether it must hold.
    pub level: Level,
    /// What holds when it holds: a short statement.
    pub title: &'static str,
    /// One sentence.
    pub why: &'static str,
    /// One sentence, when it does not hold.
    pub what_to_do: &'static str,
    /// The incident or issue that it comes from.
    pub link: &'static str,
}

/// The check with this id.
pub fn find(id: &str) -> Option<&'static Check> {
    CHECKS.iter().copied().find(|check| check.id == id)
}

macro_rules! checks {
    ($($name:ident = $level:ident, $id:literal, $title:literal, $why:literal, $todo:literal, $link:literal;)*) => {
        $(
            #[doc = $title]
            pub static $name: Check = Check {
                id: $id,
                level: Level::$level,
                title: $title,
                why: $why,
                what_to_do: $todo,
                link: $link,
            };
        )*
        /// All of them, in the order in which they are listed.
        pub static CHECKS: &[&Check] = &[$(&$name),*];
    };
}

checks! {
NODE_ANSWERS = Required, "node-answers",
    "every node was read and its engine recognised",
    "A node that was not read may be the one with the small pool; silence is no evidence.",
    "Start it, correct its address, key or CA, or give its start-up log; if it is gone, take it out of the list.",
    "https://github.com/sgl-project/sglang/issues/28651";
ROLE_AS_STATED = Required, "role-as-stated",
    "no node says that it does something else than was stated",
    "Checks between prefill and decode are made for the roles that were stated: with a wrong role the wrong nodes are compared.",
    "List the node under the role that it reports, or start it with the role that you meant.",
    "https://github.com/sgl-project/sglang/issues/35421";
PAIR_COMPLETE = Required, "pair-complete",
    "every prefill and decode node has a counterpart that was read with it",
    "Limits of prefill and decode can only be compared when both sides were asked.",
    "Name both sides (--prefill and --decode), or put the node into a [[group]] with its counterparts.",
    "https://github.com/sgl-project/sglang/issues/35421";
POOL_HOLDS_CONTEXT = Required, "pool-holds-context",
    "the KV pool of every rank holds the context with headroom",
    "A pool below the context was the first cause of the incident: a prompt of 681,281 tokens fitted an advertised context of 1,048,576 and not the prefill pool, and nothing compared the two.",
    "Give the pool more memory (SGLang: --mem-fraction-static, fewer or smaller CUDA graphs; vLLM: --gpu-memory-utilization), or lower the context (--context-length, --max-model-len) until pool >= context x headroom.",
    "https://github.com/sgl-project/sglang/issues/30233";
PROMPT_LIMITS_EQUAL = Required, "prompt-limits-equal",
    "prefill and decode accept prompts up to the same length",
    "A prompt between the two limits is accepted by one side and rejected by the other: the incident's trigger on old versions, a wait of 300 s on fixed ones.",
    "Give both sides the same context and pools that hold it, or limit prompts in the gateway to the smallest of all limits.",
    "https://github.com/sgl-project/sglang/issues/35421";
ADVERTISED_FITS = Required, "advertised-fits",
    "no node advertises more than the smallest pool on its way holds",
    "Clients and gateways believe max_model_len of /v1/models, which SGLang takes from the context and not from the pool.",
    "Lower the context to what the smallest pool holds, or limit prompts in the gateway.",
    "https://github.com/sgl-project/sglang/issues/30233";
NO_SILENT_TRUNCATION = Required, "no-silent-truncation",
    "no node cuts prompts silently",
    "With truncation each side cuts a prompt to its own limit: prefill then sends fewer pages than decode reserved, and the answer is made from whatever the others hold.",
    "Start without --allow-auto-truncate (SGLang); let the gateway answer 400.",
    "https://github.com/sgl-project/sglang/pull/38704";
NO_STALE_PAGES = Required, "no-stale-pages",
    "the version does not serve stale pages for a rejected prompt",
    "Before SGLang 0.5.20 a rejected prompt was replaced by one token, handed over and answered with 200 from other requests' pages (reproduced on 0.5.19).",
    "Upgrade to SGLang 0.5.23; or run cofferdam-guard on both sides; until then accept no prompt above the smallest limit.",
    "https://github.com/sgl-project/sglang/pull/36988";
DOOR_CHECK = Required, "door-check",
    "the version ends a rejected request before it is queued",
    "Rejected must be terminal: before SGLang 0.5.21 a rejected request went on to queue, bootstrap and forward pass.",
    "Upgrade to SGLang 0.5.23; or run cofferdam-guard on both sides.",
    "https://github.com/sgl-project/sglang/pull/38935";
MINIMUM_VERSION = Required, "minimum-version",
    "the version is at least the recommended one",
    "SGLang before 0.5.22 acknowledges the abort of another generation, and does not withhold the acknowledgement of a transfer that is not settled.",
    "Upgrade to SGLang 0.5.23; or run cofferdam-guard on both sides.",
    "https://github.com/sgl-project/sglang/pull/38961";
LENGTH_COMPARED = Required, "length-compared",
    "the receiver compares what arrived with what was reserved",
    "Without it one page sent for N reserved ones counts as success; no SGLang version up to 0.5.23 has the comparison.",
    "Run a version with sglang#38704, or cofferdam-guard on both sides (docs/guard-sglang.md); else keep all limits equal, switch the KV checksum on, and then accept it with --allow length-compared=REASON.",
    "https://github.com/sgl-project/sglang/pull/38704";
KNOWN_ADVISORIES = Required, "known-advisories",
    "no other advisory of the table applies to the version",
    "Further faults that touch isolation are known for versions of SGLang, vLLM and llama.cpp.",
    "Upgrade, or do what the advisory's own text says and accept it with --allow known-advisories@ADVISORY=REASON.",
    "https://github.com/vllm-project/vllm/issues/52234";
SAME_PAGE_SIZE = Required, "same-page-size",
    "page size is equal across prefill and decode",
    "Page numbers travel between the two: with another page size they name other tokens.",
    "Start both sides with the same --page-size (SGLang) or --block-size (vLLM).",
    "https://github.com/sgl-project/sglang/pull/39500";
SAME_KV_DTYPE = Required, "same-kv-dtype",
    "the type of KV entries is equal across prefill and decode",
    "Pages are copied as bytes: another type reads them as other numbers.",
    "Start both sides with the same --kv-cache-dtype; auto is the model's own type, so --dtype must be equal too.",
    "https://github.com/sgl-project/sglang/pull/39500";
SAME_LAYOUT = Required, "same-layout",
    "the order of KV in memory is equal across prefill and decode",
    "Pages are copied as bytes: another layout reads them as other positions, layers or heads.",
    "Start both sides with the same layout options and attention backend; where the engine reports none (vLLM), compare their start-up logs and accept it with --allow same-layout=REASON.",
    "https://github.com/sgl-project/sglang/pull/39500";
SAME_MODEL = Required, "same-model",
    "prefill and decode name the same model",
    "KV of another model, revision, quantization or RoPE setting is noise to the reader. Names and settings are compared; that equal names hold equal weights is not shown.",
    "Start both sides from the same weights, named in the same way, with the same --revision, --quantization and overrides; where the engine tells no settings (vLLM without VLLM_SERVER_DEV_MODE=1), compare them and accept it with --allow same-model=REASON.",
    "https://github.com/sgl-project/sglang/pull/38704";
SAME_TOKENIZER = Required, "same-tokenizer",
    "prefill and decode name the same tokenizer and chat template",
    "Both sides tokenize the prompt themselves: with another tokenizer or template they count other lengths, and reserve other pages than are sent.",
    "Start both sides with the same tokenizer and chat template; vLLM tells its template in the start-up log only: compare them and accept it with --allow same-tokenizer=REASON.",
    "https://github.com/sgl-project/sglang/pull/38704";
ALL_KV_JUDGED = Required, "all-kv-judged",
    "no KV is kept in a place that no check speaks about",
    "Hierarchical caches, stores of connectors, drafts of speculative decoding and states of recurrent layers hold what answers are made from, beside the pools that are compared here.",
    "Find out how that place is bounded, keyed by tenant and handed over, and accept it with --allow all-kv-judged@NODE=REASON; or switch it off.",
    "https://github.com/LMCache/LMCache/issues/4385";
UNCHANGED = Required, "unchanged",
    "nothing has changed since the baseline was saved",
    "Every change of capacity, version or layout is a change of isolation: it needs a look before traffic.",
    "Look at what changed; if it was meant, save a new baseline with --save.",
    "https://github.com/sgl-project/sglang/issues/30233";
POOL_COVERS_LARGEST = Required, "pool-covers-largest",
    "the shared pool covers the largest request with headroom",
    "A shared pool needs an assertion against the running process that ties its size to the largest request that is accepted.",
    "Make the pool larger or the largest accepted request smaller.",
    "https://github.com/sgl-project/sglang/issues/30233";
REJECT_ENDS_FIRST = Required, "reject-ends-first",
    "somebody attests that a rejected request ends before it allocates",
    "A request that is rejected after it was given something is the incident's second cause.",
    "Find out, and write answer, owner and date into [pool.attested]; renew it before it expires.",
    "https://github.com/sgl-project/sglang/pull/38935";
RECEIVER_COMPARES = Required, "receiver-compares",
    "somebody attests that the receiver compares what arrived with what was reserved",
    "A receiver that trusts the sender's success reads what was there before: the incident's third cause.",
    "Find out, and write answer, owner and date into [pool.attested]; renew it before it expires.",
    "https://github.com/sgl-project/sglang/pull/38704";
EVERY_REPLICA_READ = Required, "every-replica-read",
    "no address stands for several servers of which one answered",
    "Behind a Service each question may reach another pod: one pod's pool says nothing about the others'.",
    "Export the EndpointSlices (kubectl get endpointslices -o json), or accept it if there is one replica.",
    "https://github.com/sgl-project/sglang/issues/30233";
KV_CHECKSUM = Advisory, "kv-checksum",
    "transferred KV is compared with a checksum",
    "Nothing else in SGLang itself notices pages which were never written; off by default.",
    "SGLang 0.5.23: start both sides with --disaggregation-enable-kv-checksum; vLLM has none up to 0.33: run cofferdam-guard on both sides.",
    "https://github.com/sgl-project/sglang/pull/39500";
GUARD_ON_BOTH_SIDES = Advisory, "guard-on-both-sides",
    "where one node has cofferdam-guard, its counterparts have it too",
    "A guarded decode node refuses what an unguarded prefill node sends, and an unguarded decode node reads whatever came.",
    "Install the guard on all nodes of the group, prefill first.",
    "https://github.com/sgl-project/sglang/pull/38704";
CHECKSUM_LAYOUTS_EQUAL = Advisory, "checksum-layouts-equal",
    "parallelism and page layout are equal, so that the checksum is compared",
    "With unequal layouts SGLang 0.5.21 and 0.5.22 abort every request, and 0.5.23 admits them unverified with one warning.",
    "Give prefill and decode the same tensor, pipeline and context parallelism.",
    "https://github.com/sgl-project/sglang/pull/39500";
DEFERRED_RELEASE = Advisory, "deferred-release",
    "pages of a failed handoff are held until writing has ended",
    "Pages that are freed while a write is in flight are written into after they have a new owner.",
    "SGLang: SGLANG_DISAGGREGATION_DEFERRED_DECODE_KV_RELEASE=1 (default from 0.5.21), shown to the gate with SGLANG_EXPOSE_OWN_ENV_VARS.",
    "https://github.com/sgl-project/sglang/pull/35049";
TRANSFER_BOUNDED = Advisory, "transfer-bounded",
    "no transfer call can outlive the release time-out",
    "A call that moves everything at once can still write after the time-out has freed the pages.",
    "SGLang: set SGLANG_MOONCAKE_MAX_TRANSFER_BATCH_INDICES (0, the default, is no bound), and keep the transfer's time-out below that of the deferred release.",
    "https://github.com/sgl-project/sglang/pull/32758";
ONE_VERSION_PER_ROLE = Advisory, "one-version-per-role",
    "all nodes of a role run one version",
    "With mixed versions the answer to every question above depends on where a request lands.",
    "Finish the roll-out, or put the versions into separate groups.",
    "https://github.com/sgl-project/sglang/pull/39500";
INTROSPECTION_CLOSED = Advisory, "introspection-closed",
    "introspection wants a key",
    "Where /server_info answers anybody, /flush_cache usually does too, and it acts on GET (the gate never asks it).",
    "Set an API key and an admin key, or keep the port off every network but the gateway's.",
    "https://github.com/sgl-project/sglang/issues/32772";
HEALTH_IS_EVIDENCE = Advisory, "health-is-evidence",
    "the health endpoint exercises the way of the KV",
    "SGLang's health probes use a fake bootstrap host in disaggregated mode, vLLM's and llama.cpp's ask for liveness: all stay green during the incident.",
    "Make readiness a real generation through prefill and decode whose text is compared.",
    "https://github.com/sgl-project/sglang/issues/28651";
CONDITIONAL_ADVISORIES = Advisory, "conditional-advisories",
    "no advisory of the table applies under a condition that cannot be read",
    "Some faults need an option or a device that no endpoint reports.",
    "Look whether the condition is met; if not, accept it with --allow conditional-advisories@ADVISORY=REASON.",
    "https://github.com/ggml-org/llama.cpp/issues/28056";
HEADROOM_COST = Advisory, "headroom-cost",
    "what a full context takes of each pool is known",
    "A pool for a full context costs concurrency: how many such requests run at once is what the headroom buys.",
    "Nothing, if the number suits you; otherwise lower the context or give the pool more memory.",
    "https://github.com/sgl-project/sglang/issues/30233";
TABLE_IS_FRESH = Advisory, "table-is-fresh",
    "the table of advisories knows the newest releases of the engines that were read",
    "Versions are judged by what was known when the newest release of each engine was looked up; engines are released every few weeks.",
    "Upgrade cofferdam, or give a newer table with --advisories FILE.",
    "https://github.com/sgl-project/sglang/security/advisories";
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn ids_are_unique_and_texts_are_whole() {
        let ids: BTreeSet<_> = CHECKS.iter().map(|check| check.id).collect();
        assert_eq!(ids.len(), CHECKS.len());
        for check in CHECKS {
            let kebab = |c: char| c.is_ascii_lowercase() || c == '-';
            assert!(check.id.chars().all(kebab), "{}", check.id);
            assert!(
                check.why.ends_with('.') && check.what_to_do.ends_with('.'),
                "{}",
                check.id
            );
            assert!(check.link.starts_with("https://"), "{}", check.id);
            assert_eq!(find(check.id), Some(*check));
        }
        assert_eq!(find("no-such-check"), None);
    }
}
