"""Criteria that compare the features of samples with the features of data, such as FID, KID and the Inception score."""
