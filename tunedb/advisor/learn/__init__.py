"""Learning the direction for a thread block, advice, and its evaluation.

scikit-learn trains; a trained advisor needs NumPy alone.
"""
