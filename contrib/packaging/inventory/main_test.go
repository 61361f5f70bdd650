package main

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// A program of the project is inventoried.
func TestInventory(t *testing.T) {
	env, err := exec.Command("go", "env", "GOMODCACHE", "GOROOT").Output()
	if err != nil {
		t.Skip("no go here: ", err)
	}
	dirs := strings.Fields(string(env))
	out := t.TempDir()
	self := filepath.Join(out, "program")
	if text, err := exec.Command("go", "build", "-o", self, "../../../prolog/cmd/slurmbridge-hook").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, text)
	}
	sbom, licences := filepath.Join(out, "sbom"), filepath.Join(out, "licences")
	if err := run("pkg", "1.2", dirs[0], dirs[1], sbom, licences, []string{self}); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(sbom)
	if err != nil {
		t.Fatal(err)
	}
	var b bill
	if err := json.Unmarshal(text, &b); err != nil {
		t.Fatal(err)
	}
	if b.Format != "CycloneDX" || b.Metadata.Component.Name != "pkg" || b.Metadata.Component.Version != "1.2" {
		t.Errorf("%+v", b.Metadata)
	}
	seen := map[string]component{}
	for _, c := range b.Components {
		if _, twice := seen[c.Ref]; twice {
			t.Errorf("%s is there twice", c.Ref)
		}
		seen[c.Ref] = c
		if c.Name == "github.com/spf13/cobra" && (c.PURL != "pkg:golang/github.com/spf13/cobra@"+c.Version || !strings.HasPrefix(c.Properties[0].Value, "h1:")) {
			t.Errorf("%+v", c)
		}
	}
	if len(seen) < 5 {
		t.Errorf("%d components: %s", len(seen), text)
	}
	have, err := os.ReadFile(licences)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"Go's standard library", "github.com/spf13/cobra v", "Apache License", "Redistribution and use"} {
		if !strings.Contains(string(have), want) {
			t.Errorf("no %s among the licences", want)
		}
	}
	if err := run("pkg", "1.2", out, dirs[1], sbom, licences, []string{self}); err == nil {
		t.Error("modules without a licence were taken")
	}
	if err := run("pkg", "1.2", dirs[0], dirs[1], sbom, licences, []string{licences}); err == nil {
		t.Error("a file that is no program was taken")
	}
}

func TestEscape(t *testing.T) {
	if got := escape("github.com/NVIDIA/go-nvml"); got != "github.com/!n!v!i!d!i!a/go-nvml" {
		t.Error(got)
	}
}
