//! What every answer is judged for, whatever suite it belongs to.

use crate::ask::ProbeAnswer;
use crate::canary::{Author, Word};
use crate::chance::{Class, Depth, Evidence};
use crate::client::NoReply;
use crate::finding::{Kind, ProbeFinding, Quoted, Symptom};
use crate::matcher::{COPIES, Hit};
use crate::run::Inside;
use crate::shared::Shared;
use crate::text;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// Findings that are kept of one kind and suite; further ones are counted.
pub(crate) const FINDINGS: usize = 5;
/// Runs of words that do not convict yet and are kept.
const WAITING_MAX: usize = 4096;
/// Prompts of which it is known how they are counted.
const COUNTED_MAX: usize = 16_384;
/// Words of another tenant's answer in a row, and how many of them differ, that are worth a look.
const ANSWER_WORDS: (usize, usize) = (16, 10);
/// Token ids in a row, and how many of them differ, that another request's answer has shown.
const IDS: (usize, usize) = (10, 7);
/// Requests whose ids must be known to say that others do not have them.
const IDS_REQUESTS: usize = 8;

/// What was found, and what it rests on.
pub(crate) struct Judge {
    /// What convicts, and suspicions of suites.
    pub(crate) findings: Vec<ProbeFinding>,
    /// Runs of words that are too short or too few.
    waiting: Vec<ProbeFinding>,
    evidence: Evidence,
    /// How the prompt of a request was counted first.
    counted: BTreeMap<String, u64>,
    /// Words of answers that are in no prompt.
    answers: Shared,
    /// Token ids of prompts and of answers that go on with their prompt.
    ids: Shared,
    /// The suite that asked last.
    suite: &'static str,
}

impl Default for Judge {
    fn default() -> Self {
        Self {
            findings: Vec::new(),
            waiting: Vec::new(),
            evidence: Evidence::default(),
            counted: BTreeMap::new(),
            answers: Shared::new(ANSWER_WORDS.0, ANSWER_WORDS.1),
            ids: Shared::new(IDS.0, IDS.1),
            suite: "load",
        }
    }
}

impl Inside {
    pub(crate) fn look(&mut self, suite: &'static str, answer: &ProbeAnswer, limit: Duration) {
        self.judge.suite = suite;
        self.foreign(suite, answer);
        self.shared(answer);
        let says = self
            .reply(answer, limit)
            .into_iter()
            .chain(self.usage(answer));
        for (kind, says) in says.collect::<Vec<_>>() {
            self.found(ProbeFinding::new(
                kind,
                suite,
                says,
                vec![answer.sent.clone()],
            ));
        }
    }

    fn reply(&self, answer: &ProbeAnswer, limit: Duration) -> Option<(Kind, String)> {
        match &answer.reply {
            Err(NoReply::Hang(_)) => {
                let mine = answer.marked.author;
                let length = answer.tokens;
                let length = length.map_or(String::new(), |it| format!(", {it} tokens,"));
                let says = format!("no answer to {mine}{length} within {} s", limit.as_secs());
                Some((Kind::Hang, says))
            }
            Ok(reply) if reply.status == 200 => {
                let why = reply.said.garbage.as_deref()?;
                let says = format!("200 with a body that is not what it claims to be: {why}");
                Some((Kind::WrongErrorClass, says))
            }
            _ => None,
        }
    }

    /// What the answer counts: the same prompt is counted alike, and no more of it is cached than
    /// there is.
    fn usage(&mut self, answer: &ProbeAnswer) -> Option<(Kind, String)> {
        answer.text()?;
        let said = &answer.reply.as_ref().ok()?.said;
        let tokens = said.prompt_tokens?;
        let mine = answer.marked.author;
        if let Some(cached) = said.cached_tokens.filter(|it| *it > tokens) {
            let says = format!(
                "{cached} tokens of the prompt of {mine} are said to have been cached, and it is \
                 counted as {tokens}"
            );
            return Some((Kind::SilentAcceptance, says));
        }
        // What does not change how a prompt is counted is left out.
        const NEUTRAL: [&str; 4] = ["stream", "stream_options", "max_tokens", "temperature"];
        let fields = answer.sent.body.iter();
        let fields: Vec<_> = fields
            .filter(|it| !NEUTRAL.contains(&it.0.as_str()))
            .collect();
        let key = format!("{} {fields:?}", answer.sent.url);
        if self.judge.counted.len() >= COUNTED_MAX {
            return None;
        }
        let first = *self.judge.counted.entry(key).or_insert(tokens);
        // Where it says that it cut, it may cut otherwise now; where lengths are wanted exactly, the
        // suite that wants them judges.
        if first == tokens || said.truncated.is_some() || answer.tokens.is_some() {
            return None;
        }
        let says = format!(
            "the prompt of {mine} is counted as {tokens} tokens; the same one was counted as {first}"
        );
        Some((Kind::SilentAcceptance, says))
    }

    /// Canaries of others.
    fn foreign(&mut self, suite: &'static str, answer: &ProbeAnswer) {
        let mine = answer.marked.author;
        // The longest run of each author is enough; runs come longest first in each text.
        let mut hits = answer.foreign.clone();
        hits.sort_by_key(|it| (std::cmp::Reverse(it.words), it.depth));
        let mut named = BTreeSet::new();
        for hit in hits.into_iter().filter(|it| named.insert(it.author)) {
            let class = match hit.author.tenant == mine.tenant {
                true => Class::Own,
                false => Class::Foreign,
            };
            let places = self.matcher.places(hit.depth);
            let of = (class, hit.depth);
            let evidence = &mut self.judge.evidence;
            let more = evidence.add(of, hit.author, hit.words, places);
            let finding = self.quoting(suite, answer, hit, class);
            if self.judge.evidence.convicts(of, finding.1) {
                self.convict(finding.0);
            } else if self.judge.waiting.len() < WAITING_MAX {
                self.judge.waiting.push(finding.0);
            }
            if more {
                self.sentence();
            }
        }
    }

    /// The finding that an answer holds these words; and how many they are.
    fn quoting(
        &self,
        suite: &'static str,
        answer: &ProbeAnswer,
        hit: Hit,
        class: Class,
    ) -> (ProbeFinding, usize) {
        let mine = answer.marked.author;
        let place = match hit.sentence {
            Some(sentence) => format!("{}, sentence {sentence},", hit.author),
            None => hit.author.to_string(),
        };
        let how = match hit.depth {
            Depth::Plain => "consecutive words",
            Depth::Spaced => "words, regularly spaced or from the last to the first,",
            Depth::Letters => "words, in another form,",
        };
        let says = format!(
            "{} {how} of {place} in the answer to {mine} (status {})",
            hit.words,
            answer.status().unwrap_or(0)
        );
        let source = self.kept.iter().rfind(|(author, _)| *author == hit.author);
        let source = source.map(|(_, sent)| sent.clone());
        let proof = match &source {
            Some(_) => Symptom::Foreign(hit.author),
            None => Symptom::None,
        };
        let shows = source.into_iter().chain([answer.sent.clone()]).collect();
        let finding = ProbeFinding {
            quote: Some(hit.quote),
            quoted: Some(Quoted {
                author: hit.author,
                words: hit.words,
                depth: hit.depth,
                class,
            }),
            proof,
            ..ProbeFinding::new(Kind::Suspect, suite, says, shows)
        };
        (finding, hit.words)
    }

    fn convict(&mut self, mut finding: ProbeFinding) {
        finding.kind = match finding.quoted.map(|it| it.class) {
            Some(Class::Own) => Kind::Mixup,
            _ => Kind::Leak,
        };
        self.found(finding);
    }

    /// Runs that were too short or too few, and are not any more.
    fn sentence(&mut self) {
        let judge = &mut self.judge;
        let evidence = &judge.evidence;
        let convicts = |it: &ProbeFinding| {
            let quoted = it.quoted.as_ref();
            quoted.is_some_and(|it| evidence.convicts((it.class, it.depth), it.words))
        };
        let waiting = std::mem::take(&mut judge.waiting);
        let (guilty, waiting): (Vec<_>, Vec<_>) = waiting.into_iter().partition(convicts);
        judge.waiting = waiting;
        guilty.into_iter().for_each(|it| self.convict(it));
    }

    /// Keeps what later answers must not hold: what was generated, and token ids.
    fn shared(&mut self, answer: &ProbeAnswer) {
        let Some(text) = answer.text() else { return };
        let author = answer.marked.author;
        let words = text::words(text);
        let own: BTreeSet<Word> = answer.marked.words().into_iter().collect();
        let of_prompt =
            |it: &&String| crate::inflected::index(it).is_some_and(|it| own.contains(&it));
        let free = words.iter().filter(|it| !of_prompt(it)).count();
        // What mostly goes on with its prompt holds canaries, and they are looked for anyway.
        if 2 * free > words.len() {
            self.judge.answers.take(author, &words);
        }
        if let Ok(reply) = &answer.reply
            && answer.own >= COPIES
        {
            for ids in &reply.said.ids {
                self.judge.ids.take(author, ids);
            }
        }
    }

    /// What does not convict, and must be said.
    pub(crate) fn undecided(&self) -> Vec<ProbeFinding> {
        let judge = &self.judge;
        let mut all: Vec<ProbeFinding> = Vec::new();
        for finding in &judge.waiting {
            let Some(quoted) = finding.quoted else {
                continue;
            };
            let places = self.matcher.places(quoted.depth);
            let chance = judge.evidence.chance((quoted.class, quoted.depth), places);
            let long = quoted.words >= COPIES;
            if chance.is_none() && !long {
                continue;
            }
            let mut finding = finding.clone();
            if let Some(chance) = chance {
                finding.says = format!(
                    "{}; runs as long and as many as were seen come about by chance with {chance:.1e}",
                    finding.says
                );
            }
            all.push(finding);
        }
        all.extend(self.alike());
        all
    }

    /// Runs that only two tenants' answers hold, though they are in no prompt. Words may be a phrase
    /// of the model's; ids of answers that go on with their prompts are ids of their canaries.
    fn alike(&self) -> Vec<ProbeFinding> {
        let texts = self.judge.answers.pairs().into_iter();
        let texts = texts.map(|it| (Kind::Suspect, "words", ANSWER_WORDS.0, it));
        let kind = match self.judge.ids.requests() {
            IDS_REQUESTS.. => Kind::WrongAnswer,
            _ => Kind::Suspect,
        };
        let ids = self.judge.ids.pairs().into_iter();
        let ids = ids.map(|it| (kind, "token ids", IDS.0, it));
        texts.chain(ids).map(|it| self.shared_by(it)).collect()
    }

    fn shared_by(
        &self,
        (kind, what, n, (one, two)): (Kind, &str, usize, (Author, Author)),
    ) -> ProbeFinding {
        let says = format!(
            "the answers to {one} and to {two} share {n} {what} in a row that hardly another answer \
             has, and neither prompt: has one the other's?"
        );
        let shown = self.kept.iter().filter(|(it, _)| *it == one || *it == two);
        let shows = shown.map(|(_, sent)| sent.clone()).take(2).collect();
        ProbeFinding {
            quote: Some(format!("({n} {what})")),
            ..ProbeFinding::new(kind, self.judge.suite, says, shows)
        }
    }

    pub(crate) fn found(&mut self, finding: ProbeFinding) {
        let of = (finding.kind, finding.suite);
        let n = self.counts.findings.entry(of).or_default();
        *n += 1;
        if *n <= FINDINGS as u64 {
            self.judge.findings.push(finding);
        }
    }
}
