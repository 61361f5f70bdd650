// Command inventory says what a package's programs are made of: a bill of materials
// (CycloneDX 1.5, JSON) and the licences of the modules that are linked in, both read
// from the programs themselves.
//
//	inventory -name NAME -version V -modcache DIR -goroot DIR -sbom FILE -licences FILE PROGRAM...
package main

import (
	"debug/buildinfo"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strings"
	"unicode"
)

func main() {
	name := flag.String("name", "", "the package")
	version := flag.String("version", "", "its version")
	cache := flag.String("modcache", "", "go env GOMODCACHE")
	goroot := flag.String("goroot", "", "go env GOROOT")
	sbom := flag.String("sbom", "", "bill of materials to write")
	licences := flag.String("licences", "", "texts of licences to write")
	flag.Parse()
	if err := run(*name, *version, *cache, *goroot, *sbom, *licences, flag.Args()); err != nil {
		fmt.Fprintln(os.Stderr, "inventory:", err)
		os.Exit(1)
	}
}

func run(name, version, cache, goroot, sbom, licences string, programs []string) error {
	modules, goVersion, err := modulesOf(programs)
	if err != nil {
		return err
	}
	bill, err := json.MarshalIndent(billOf(name, version, goVersion, programs, modules), "", " ")
	if err != nil {
		return err
	}
	texts, err := textsOf(cache, goroot, modules)
	if err != nil {
		return err
	}
	if err := os.WriteFile(sbom, append(bill, '\n'), 0o600); err != nil {
		return err
	}
	return os.WriteFile(licences, []byte(texts), 0o600)
}

// modulesOf lists what the programs are linked from, each module once, by path.
func modulesOf(programs []string) (modules []debug.Module, goVersion string, err error) {
	for _, p := range programs {
		info, err := buildinfo.ReadFile(p)
		if err != nil {
			return nil, "", fmt.Errorf("%s: %w", p, err)
		}
		goVersion = info.GoVersion
		for _, m := range info.Deps {
			if m.Replace != nil {
				m = m.Replace
			}
			if !slices.ContainsFunc(modules, func(o debug.Module) bool { return o.Path == m.Path && o.Version == m.Version }) {
				modules = append(modules, *m)
			}
		}
	}
	slices.SortFunc(modules, func(a, b debug.Module) int {
		return strings.Compare(a.Path+"@"+a.Version, b.Path+"@"+b.Version)
	})
	return modules, goVersion, nil
}

type component struct {
	Type    string `json:"type"`
	Ref     string `json:"bom-ref,omitempty"`
	Name    string `json:"name"`
	Version string `json:"version,omitempty"`
	PURL    string `json:"purl,omitempty"`
	// Properties has Go's own checksum of the module.
	Properties []property `json:"properties,omitempty"`
}

type property struct {
	Name  string `json:"name"`
	Value string `json:"value"`
}

type bill struct {
	Format      string      `json:"bomFormat"`
	SpecVersion string      `json:"specVersion"`
	Version     int         `json:"version"`
	Metadata    metadata    `json:"metadata"`
	Components  []component `json:"components"`
}

type metadata struct {
	Component component `json:"component"`
}

func billOf(name, version, goVersion string, programs []string, modules []debug.Module) *bill {
	b := &bill{Format: "CycloneDX", SpecVersion: "1.5", Version: 1}
	b.Metadata.Component = component{Type: "application", Ref: name, Name: name, Version: version}
	for _, p := range programs {
		b.Metadata.Component.Properties = append(b.Metadata.Component.Properties, property{"program", filepath.Base(p)})
	}
	v := strings.TrimPrefix(goVersion, "go")
	b.Components = append(b.Components, component{
		Type: "library", Ref: "pkg:golang/std@" + v, Name: "std", Version: v, PURL: "pkg:golang/std@" + v,
	})
	for _, m := range modules {
		purl := "pkg:golang/" + m.Path + "@" + m.Version
		b.Components = append(b.Components, component{
			Type: "library", Ref: purl, Name: m.Path, Version: m.Version, PURL: purl,
			Properties: []property{{"go:sum", m.Sum}},
		})
	}
	return b
}

// textsOf joins the licences of modules. One without is an error: nobody may hand
// it on.
func textsOf(cache, goroot string, modules []debug.Module) (string, error) {
	var b strings.Builder
	b.WriteString("What is linked into the programs, with its licences.\n")
	text, err := os.ReadFile(filepath.Join(goroot, "LICENSE"))
	if err != nil {
		return "", err
	}
	fmt.Fprintf(&b, "\n==== Go's standard library ====\n\n%s", text)
	for _, m := range modules {
		dir := filepath.Join(cache, escape(m.Path)+"@"+escape(m.Version))
		entries, err := os.ReadDir(dir)
		if err != nil {
			return "", err
		}
		found := false
		for _, e := range entries {
			word, _, _ := strings.Cut(strings.ToUpper(e.Name()), ".")
			word, _, _ = strings.Cut(word, "-")
			if e.IsDir() || !slices.Contains([]string{"LICENSE", "LICENCE", "COPYING", "NOTICE", "PATENTS"}, word) {
				continue
			}
			text, err := os.ReadFile(filepath.Join(dir, e.Name()))
			if err != nil {
				return "", err
			}
			found = found || word != "NOTICE" && word != "PATENTS"
			fmt.Fprintf(&b, "\n==== %s %s: %s ====\n\n%s", m.Path, m.Version, e.Name(), text)
		}
		if !found {
			return "", fmt.Errorf("%s %s has no licence", m.Path, m.Version)
		}
	}
	return b.String(), nil
}

// escape is how the module cache writes capital letters.
func escape(path string) string {
	var b strings.Builder
	for _, r := range path {
		if unicode.IsUpper(r) {
			b.WriteByte('!')
			r = unicode.ToLower(r)
		}
		b.WriteRune(r)
	}
	return b.String()
}
