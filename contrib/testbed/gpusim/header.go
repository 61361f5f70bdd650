package gpusim

import (
	"fmt"
	"reflect"
	"regexp"
	"strings"
)

// Header describes the state file in C, for nvmlsim: the structs of layout.go, as struct sim_NAME, each name in small
// letters, and the constants. It has the compiler check that both languages mean the same bytes.
func Header() string {
	h := header{"#include <stddef.h>\n#include <stdint.h>\n"}
	for name, value := range map[string]any{
		"MAGIC": magic, "VERSION": version, "HEADER_SIZE": headerSize, "MAX_DEVICES": MaxDevices, "SLOTS": Slots,
		"INSTANCES":    MaxInstances,
		"CAP_MPS_LIST": capMPSList, "CAP_GPM": capGPM, "CAP_MIG": capMIG, "CAP_NUMA": capNUMA,
		"CLIENT": Client, "SERVER": Server, "RUNNING": Running, "PAUSED": Paused,
	} {
		h.addf("#define SIM_%s %#v\n", name, value)
	}
	for prefix, words := range map[string][]string{"F": figures, "FAULT": faultModes} {
		for i, w := range words {
			h.addf("#define SIM_%s_%s %d\n", prefix, strings.ToUpper(strings.ReplaceAll(w, "-", "_")), i)
		}
	}
	h.typeOf(reflect.TypeFor[fileHeader]())
	h.typeOf(reflect.TypeFor[deviceRec]())
	return h.text
}

type header struct{ text string }

func (h *header) addf(format string, args ...any) { h.text += fmt.Sprintf(format, args...) }

var camel = regexp.MustCompile(`([a-z0-9])([A-Z])`)

func inC(name string) string {
	return strings.ToLower(camel.ReplaceAllString(strings.ReplaceAll(name, "MiB", "Mib"), "${1}_$2"))
}

// typeOf returns C's name of a type, after the declaration of what it has that isn't declared yet.
func (h *header) typeOf(t reflect.Type) string {
	if t.Kind() != reflect.Struct {
		return map[reflect.Kind]string{
			reflect.Uint8: "char", reflect.Bool: "_Bool", reflect.Int: "long", reflect.Int64: "int64_t",
			reflect.Uint32: "uint32_t", reflect.Uint64: "uint64_t", reflect.Float64: "double",
		}[t.Kind()]
	}
	name := "struct sim_" + inC(t.Name())
	if strings.Contains(h.text, name+" {") {
		return name
	}
	body, checks := "", fmt.Sprintf("_Static_assert(sizeof(%s) == %d, \"size\");\n", name, t.Size())
	for _, f := range reflect.VisibleFields(t) {
		if f.Anonymous {
			continue // its fields follow
		}
		dims, of := "", f.Type
		for ; of.Kind() == reflect.Array; of = of.Elem() {
			dims += fmt.Sprintf("[%d]", of.Len())
		}
		body += fmt.Sprintf("\t%s %s%s;\n", h.typeOf(of), inC(f.Name), dims)
		checks += fmt.Sprintf("_Static_assert(offsetof(%s, %s) == %d, \"%[2]s\");\n", name, inC(f.Name), f.Offset)
	}
	h.addf("%s {\n%s};\n%s", name, body, checks)
	return name
}
