"""Numbers that compare the features of samples with those of data: FID, KID, Inception score."""
