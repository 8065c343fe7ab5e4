"""`python -m ai_trains_ai` is `ata`."""

from ai_trains_ai.cli import main

if __name__ == "__main__":
    main()
