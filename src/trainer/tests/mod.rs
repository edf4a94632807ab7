mod evaluation;
mod exact;
mod family;
mod family_oracle;
mod npz;
mod oracle;
mod stale;
mod streams;
