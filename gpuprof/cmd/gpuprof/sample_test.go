package main

import (
	"io"
	"os"
	"strings"
	"testing"

	"github.com/spf13/pflag"
)

// The sample has every setting of serve, with its default, and nothing else.
func TestSampleInEtc(t *testing.T) {
	const file = "../../../etc/gpuprof.yaml"
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	root := newRoot(io.Discard, io.Discard)
	serve, _, err := root.Find([]string{"serve"})
	if err != nil {
		t.Fatal(err)
	}
	if err := serve.ParseFlags([]string{"--config", file}); err != nil {
		t.Fatal(err)
	}
	if _, err := settings(serve); err != nil {
		t.Fatal(err)
	}
	serve.Flags().VisitAll(func(f *pflag.Flag) {
		key := strings.ReplaceAll(f.Name, "-", "_")
		if key == "config" || key == "help" {
			return
		}
		if f.Value.String() != f.DefValue {
			t.Errorf("%s: %s is %q, the default is %q", file, key, f.Value, f.DefValue)
		}
		before, _, ok := strings.Cut(string(text), "\n"+key+": ")
		if last := before[strings.LastIndex(before, "\n")+1:]; !ok || !strings.HasPrefix(last, "# ") {
			t.Errorf("%s has no line, or no word of explanation, for %s", file, key)
		}
	})
}
