"""`cotswold bench server`: what a parameter server does, beside what memory and products allow."""
