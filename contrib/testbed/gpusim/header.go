package gpusim

import (
	"fmt"
	"reflect"
	"regexp"
	"strings"
)

// Header describes the state file in C, for nvmlsim: the structs of layout.go, as struct sim_NAME with each field's
// name in small letters, and the constants. It has the compiler check that both languages mean the same bytes.
func Header() string {
	var b strings.Builder
	b.WriteString("#include <stddef.h>\n#include <stdint.h>\n")
	for _, c := range []struct {
		name  string
		value any
	}{
		{"MAGIC", fmt.Sprintf("%q", magic)},
		{"VERSION", version},
		{"HEADER_SIZE", headerSize},
		{"MAX_DEVICES", MaxDevices},
		{"SLOTS", Slots},
		{"POINTS", MaxPoints},
		{"CHANGES", maxChanges},
		{"INSTANCES", MaxInstances},
		{"LIMITS", maxLimits},
		{"CAP_MPS_LIST", capMPSList},
		{"CAP_GPM", capGPM},
		{"CAP_MIG", capMIG},
		{"CAP_LIMITS", capLimits},
		{"CLIENT", uint32(Client)},
		{"SERVER", uint32(Server)},
		{"RUNNING", uint32(Running)},
		{"PAUSED", uint32(Paused)},
	} {
		fmt.Fprintf(&b, "#define SIM_%s %v\n", c.name, c.value)
	}
	for prefix, words := range map[string][]string{"F": figures, "FAULT": faultModes} {
		for i, w := range words {
			fmt.Fprintf(&b, "#define SIM_%s_%s %d\n", prefix, strings.ToUpper(strings.ReplaceAll(w, "-", "_")), i)
		}
	}
	structs := map[reflect.Type]string{}
	for _, s := range []struct {
		name string
		of   reflect.Type
	}{
		{"header", reflect.TypeFor[fileHeader]()},
		{"point", reflect.TypeFor[point]()},
		{"slot", reflect.TypeFor[slot]()},
		{"member", reflect.TypeFor[member]()},
		{"change", reflect.TypeFor[change]()},
		{"dyn", reflect.TypeFor[dyn]()},
		{"fault", reflect.TypeFor[fault]()},
		{"limit", reflect.TypeFor[groupLimit]()},
		{"instance", reflect.TypeFor[instance]()},
		{"device", reflect.TypeFor[deviceRec]()},
	} {
		structs[s.of] = "struct sim_" + s.name
		fmt.Fprintf(&b, "%s {\n", structs[s.of])
		checks := fmt.Sprintf("_Static_assert(sizeof(%s) == %d, \"%s\");\n", structs[s.of], s.of.Size(), s.name)
		for _, f := range reflect.VisibleFields(s.of) {
			if f.Anonymous {
				continue // its fields follow
			}
			name := strings.ToLower(camel.ReplaceAllString(f.Name, "${1}_$2"))
			if name == "_" {
				name = fmt.Sprint("pad", f.Offset)
			}
			fmt.Fprintf(&b, "\t%s;\n", declare(structs, f.Type, name))
			checks += fmt.Sprintf("_Static_assert(offsetof(%s, %s) == %d, \"%[2]s\");\n", structs[s.of], name, f.Offset)
		}
		b.WriteString("};\n" + checks)
	}
	return b.String()
}

var camel = regexp.MustCompile(`([a-z0-9])([A-Z])`)

// declare is C's declaration of a field.
func declare(structs map[reflect.Type]string, t reflect.Type, name string) string {
	if t.Kind() == reflect.Array {
		return declare(structs, t.Elem(), fmt.Sprintf("%s[%d]", name, t.Len()))
	}
	kinds := map[reflect.Kind]string{
		reflect.Uint8: "char", reflect.Int32: "int32_t", reflect.Uint32: "uint32_t", reflect.Int64: "int64_t",
		reflect.Uint64:  "uint64_t",
		reflect.Float64: "double", reflect.Struct: structs[t],
	}
	return kinds[t.Kind()] + " " + name
}
