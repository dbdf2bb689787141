//! A pool, tables and memory around a model, as a worker has them.
#![allow(dead_code)] // each test uses its part

pub mod drawn;

use model::{
    Isa, KvLayout, KvMemory, LoadOptions, Logits, Model, Numeric, Scratch, SequenceInput, Want,
};
use pages::{BlockTable, Config, Domain, Grant, Owner, OwnerId, Pool, Seal, Step};

/// Every instruction set of this CPU; a CPU without AVX-512 tests what it has.
pub fn isas() -> Vec<Isa> {
    Isa::ALL
        .into_iter()
        .filter(|isa| isa.is_available())
        .collect()
}

pub fn load(file: &gguf::File, numeric: Numeric, isa: Isa, threads: usize) -> Model {
    Model::load(
        file,
        LoadOptions {
            numeric,
            isa,
            threads,
        },
    )
    .expect("the model loads")
}

/// One worker's memory and the sequences in it.
pub struct Bench<'m> {
    model: &'m Model,
    pool: Pool,
    kv: KvMemory,
    scratch: Scratch,
    sequences: Vec<Sequence>,
}

struct Sequence {
    table: BlockTable,
    grants: Vec<Grant>,
}

impl<'m> Bench<'m> {
    /// Memory for `capacities.len()` sequences of so many tokens.
    pub fn new(model: &'m Model, page_size: u16, capacities: &[usize]) -> Bench<'m> {
        let pages: usize = capacities
            .iter()
            .map(|n| n.div_ceil(page_size.into()))
            .sum();
        let config = Config {
            pages: pages as u32,
            page_size,
            scrub: false,
        };
        let (mut pool, _mint) = Pool::new(config);
        let sequences = capacities
            .iter()
            .enumerate()
            .map(|(i, tokens)| sequence(&mut pool, i, tokens.div_ceil(page_size.into())))
            .collect();
        let layout = KvLayout::new(model.config(), page_size.into());
        let kv = KvMemory::allocate(layout, &pool).expect("memory for a test");
        Bench {
            model,
            pool,
            kv,
            scratch: Scratch::default(),
            sequences,
        }
    }

    pub fn kv_mut(&mut self) -> &mut KvMemory {
        &mut self.kv
    }

    pub fn pages_of(&self, sequence: usize) -> Vec<pages::PageId> {
        self.sequences[sequence].table.pages().collect()
    }

    /// One step of the sequences named in `parts` (ascending), each with its new tokens.
    pub fn step(&mut self, parts: &[(usize, &[u32], Want)]) -> Result<Logits, model::Error> {
        let inputs: Vec<SequenceInput<'_>> = parts
            .iter()
            .map(|(_, tokens, want)| SequenceInput {
                tokens,
                want: *want,
            })
            .collect();
        let steps = self
            .sequences
            .iter_mut()
            .enumerate()
            .filter_map(|(i, sequence)| {
                let part = parts.iter().find(|part| part.0 == i)?;
                Some(Step {
                    table: &mut sequence.table,
                    new: part.1.len() as u32,
                })
            })
            .collect();
        let verified = self
            .pool
            .verify_in_full(steps)
            .expect("the tables are sound");
        let logits = self
            .model
            .forward(&mut self.scratch, &mut self.kv, &verified, &inputs)?;
        drop(verified);
        for (i, tokens, _) in parts {
            self.sequences[*i].advance(&mut self.pool, tokens.len());
        }
        Ok(logits)
    }

    /// Logits at every position of `tokens`, run in chunks as sequence 0.
    pub fn all_logits(&mut self, tokens: &[u32], chunk: usize) -> Vec<Vec<f32>> {
        let mut rows = Vec::new();
        for part in tokens.chunks(chunk) {
            let logits = self.step(&[(0, part, Want::All)]).expect("a sound step");
            rows.extend(logits.of(0).map(|(_, row)| row.to_vec()));
        }
        rows
    }
}

impl Sequence {
    /// Records that a step has written `new` more tokens.
    fn advance(&mut self, pool: &mut Pool, new: usize) {
        let size = usize::from(pool.page_size());
        let start = self.table.tokens() as usize;
        let end = start + new;
        for ordinal in start / size..end.div_ceil(size) {
            let filled = size.min(end - ordinal * size) as u16;
            pool.extend(&self.grants[ordinal], filled, None)
                .expect("own page");
        }
        self.table.advance_to(end as u32);
    }
}

fn sequence(pool: &mut Pool, index: usize, pages: usize) -> Sequence {
    let id = OwnerId::new(index as u64 + 1);
    let owner = Owner {
        id,
        domain: Domain::new(index as u64 + 100),
        lane: 0,
    };
    let grants = pool
        .reserve(owner, pages)
        .expect("the pool was made for this");
    let page_size = pool.page_size();
    let mut table = BlockTable::new(owner, page_size);
    for (ordinal, grant) in grants.iter().enumerate() {
        let seal = Seal {
            ordinal: ordinal as u32,
            filled: 0,
            checksum: None,
        };
        pool.seal(grant, seal).expect("own grant");
        table.push_own(grant);
    }
    Sequence { table, grants }
}
