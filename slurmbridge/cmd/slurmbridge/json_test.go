package main

import (
	"encoding"
	"reflect"
	"regexp"
	"strings"
	"testing"

	"github.com/slurmbridge/slurmbridge/slurmbridge/doctor"
	"github.com/slurmbridge/slurmbridge/slurmbridge/httpapi"
	"github.com/slurmbridge/slurmbridge/slurmbridge/journal"
	"github.com/slurmbridge/slurmbridge/slurmbridge/profile/store"
	"github.com/slurmbridge/slurmbridge/slurmbridge/receipt"
	"github.com/slurmbridge/slurmbridge/slurmbridge/usage"
)

// Names in what --json and /v1 give to programs are of one style, and none is Go's own.
func TestNamesInJSON(t *testing.T) {
	style := regexp.MustCompile(`^[a-z][a-z0-9_]*$`)
	seen, n := map[reflect.Type]bool{}, 0
	var walk func(of reflect.Type, path string)
	walk = func(of reflect.Type, path string) {
		switch of.Kind() {
		case reflect.Pointer, reflect.Slice, reflect.Array, reflect.Map:
			walk(of.Elem(), path)
			return
		case reflect.Struct:
		default:
			return
		}
		text := reflect.TypeFor[encoding.TextMarshaler]()
		if seen[of] || of.Implements(text) || reflect.PointerTo(of).Implements(text) {
			return // shown as a text
		}
		seen[of] = true
		for i := range of.NumField() {
			f := of.Field(i)
			name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
			switch {
			case !f.IsExported() && !f.Anonymous, name == "-":
				continue
			case f.Anonymous && name == "":
			case !style.MatchString(name):
				t.Errorf("%s: %s.%s is %q", path, of, f.Name, name)
			}
			n++
			walk(f.Type, path+"."+name)
		}
	}
	for _, v := range []any{
		httpapi.Report{},
		httpapi.PlanReport{},
		httpapi.IdleReport{},
		httpapi.MemoryReport{},
		journal.Story{},
		journal.Grouped{},
		usage.Report{},
		receipt.Receipt{},
		store.Listed{},
		shown{},
		doctor.Finding{},
		sent{},
	} {
		walk(reflect.TypeOf(v), reflect.TypeOf(v).String())
	}
	if n < 150 {
		t.Errorf("only %d fields were seen", n)
	}
}
