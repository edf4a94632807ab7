//! Trains TGN on a file of events from a program of one's own: `cargo run --release --example train -- events.csv`.

use tidemill::{Config, Trainer};

fn main() -> tidemill::Result<()> {
    let mut config = Config::default();
    config.data.path =
        std::env::args_os().nth(1).unwrap_or_else(|| "data/cache/synthetic-wikipedia.arrow".into()).into();
    config.train.epochs = 2;
    let mut trainer = Trainer::new(config)?;
    trainer.hooks_mut().on_epoch(Box::new(|epoch| eprintln!("epoch {}: val AP {:.4}", epoch.epoch, epoch.val_ap)));
    let summary = trainer.fit()?;
    let test = summary.test.expect("a finished run has been tested");
    eprintln!("test AP {:.4}, AUC {:.4}", test.links.ap, test.links.auc);
    Ok(())
}
