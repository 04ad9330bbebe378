"""The W2 attention write-up's verification script."""
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))

from w2attn.verify import main

raise SystemExit(main())
