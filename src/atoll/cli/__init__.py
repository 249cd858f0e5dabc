"""The face on the command line: words in, one engine call, words out."""
