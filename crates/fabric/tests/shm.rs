//! Shared memory keeps the contract of a fabric.

mod contract;

use contract::Fabric;
use fabric::shm::{Limits, ShmReceiver, ShmSender};
use fabric::{Receiver, Sender, WriteEnding};
use pages::{FenceMint, WriterLife};

struct SharedMemory;

impl Fabric for SharedMemory {
    fn receiver(&self, mint: FenceMint) -> Box<dyn Receiver> {
        let limits = Limits {
            bytes_max: 64 << 20,
        };
        Box::new(ShmReceiver::new(&std::env::temp_dir(), mint, limits).unwrap())
    }

    fn sender(&self, life: WriterLife) -> Box<dyn Sender> {
        Box::new(ShmSender::new(life))
    }

    fn ending_after_a_fence(&self) -> WriteEnding {
        WriteEnding::Landed
    }
}

fn main() {
    contract::main(&SharedMemory);
}
