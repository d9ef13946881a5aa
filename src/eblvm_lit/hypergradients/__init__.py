"""How d J(theta, phi*(theta)) / d theta is had."""
