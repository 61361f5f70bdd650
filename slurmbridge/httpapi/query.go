package httpapi

import (
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"
)

// parameters are those that a path takes, and how often each may be given.
type parameters map[string]int

// only lets h answer requests whose query has these parameters and no others. What falls away in silence widens an
// answer: with a misspelt filter, one that can't be decoded, or more users than a filter takes, every user's lines
// would come.
func (p parameters) only(h http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, req *http.Request) {
		if err := p.check(req.URL.RawQuery); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		h(w, req)
	}
}

// check returns what is wrong with a query, in a sentence.
func (p parameters) check(query string) error {
	values, err := url.ParseQuery(query)
	if err != nil {
		return fmt.Errorf("the query can't be read: %w", err)
	}
	for _, name := range slices.Sorted(maps.Keys(values)) {
		most, taken := p[name]
		switch given := len(values[name]); {
		case !taken && len(p) == 0:
			return fmt.Errorf("there is no parameter %.40q: the path takes none", name)
		case !taken:
			return fmt.Errorf("there is no parameter %.40q; there are %s", name, strings.Join(slices.Sorted(maps.Keys(p)), ", "))
		case given > most && most == 1:
			return fmt.Errorf("%s is given %d times: once is enough", name, given)
		case given > most:
			return fmt.Errorf("%s is given %d times: at most %d", name, given, most)
		}
	}
	return nil
}
