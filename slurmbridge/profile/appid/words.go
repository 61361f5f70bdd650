package appid

import (
	"path"
	"strings"
)

// commands splits a line of shell into its simple commands, and each into words
// without their quotes. It runs nothing and expands nothing; what is unbalanced
// ends with the line. Redirections are left out: where output goes changes nothing.
func commands(line string) [][]string {
	var (
		out   [][]string
		words []string
		word  strings.Builder
		begun bool // a word has begun, if only by a quote
		drop  bool // the next word is where a redirection goes
	)
	end := func() {
		if begun && !drop {
			words = append(words, word.String())
		}
		if begun {
			drop = false
		}
		word.Reset()
		begun = false
	}
	stop := func() {
		end()
		if len(words) > 0 {
			out = append(out, words)
		}
		words, drop = nil, false
	}
	for i := 0; i < len(line); i++ {
		switch c := line[i]; c {
		case ' ', '\t':
			end()
		case ';', '|', '&', '(', ')':
			if c == '&' && i+1 < len(line) && line[i+1] == '>' {
				continue // &> is a redirection
			}
			stop()
		case '<', '>':
			// A number right before it names the stream.
			if strings.Trim(word.String(), "012") == "" {
				word.Reset()
				begun = false
			}
			end()
			for i+1 < len(line) && (line[i+1] == c || line[i+1] == '&' || line[i+1] == '|') {
				i++
			}
			drop = true
		case '#':
			if !begun {
				stop()
				return out // a comment
			}
			word.WriteByte(c)
		case '\\':
			if i+1 < len(line) {
				i++
				word.WriteByte(line[i])
			}
			begun = true
		case '\'', '"', '`':
			j := closing(line, i)
			if c == '`' {
				word.WriteString(line[i:min(j+1, len(line))])
			} else {
				word.WriteString(line[i+1 : j])
			}
			begun, i = true, j
		case '$':
			j := i
			if i+1 < len(line) && (line[i+1] == '(' || line[i+1] == '{') {
				j = bracket(line, i+1)
			}
			word.WriteString(line[i:min(j+1, len(line))])
			begun, i = true, j
		default:
			word.WriteByte(c)
			begun = true
		}
	}
	stop()
	return out
}

// closing returns where the quote that opens at i closes, the line's end where it
// doesn't.
func closing(line string, i int) int {
	for j := i + 1; j < len(line); j++ {
		switch {
		case line[j] == '\\' && line[i] != '\'':
			j++
		case line[j] == line[i]:
			return j
		}
	}
	return len(line)
}

// bracket is closing for the ( or { at i; brackets within it count, quotes don't.
func bracket(line string, i int) int {
	shut := byte(')')
	if line[i] == '{' {
		shut = '}'
	}
	depth := 0
	for j := i; j < len(line); j++ {
		switch line[j] {
		case line[i]:
			depth++
		case shut:
			if depth--; depth == 0 {
				return j
			}
		}
	}
	return len(line)
}

// base is the last part of a path, "" where there is none.
func base(s string) string {
	if b := path.Base(s); b != "." && b != "/" && b != ".." {
		return b
	}
	return ""
}
