"""What a GPU node is: pyinfra facts, and the pure parsers behind them. Never imports `rackwright`."""
