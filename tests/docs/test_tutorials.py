"""placeholder"""
from pathlib import Path
import sys
from tests.support.tutorials.reader import Reader
