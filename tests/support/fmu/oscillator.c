/* A co-simulation FMU of FMI 2.0: a mass on a spring, x'' = -k x / m + force / m, by symplectic Euler steps.
   `steps` counts the instances' communication steps since the last reset; k <= 0 is refused with a message. */
#include <stdlib.h>
#include <string.h>
#include "fmi2Functions.h"

enum { K, MASS, FORCE, X, ENERGY, DAMPED, ORDER, VALUES };

typedef struct {
    double values[VALUES];
    double v;
    int steps;
    fmi2CallbackFunctions functions;
} Instance;

static void start(Instance *self) {
    memset(self->values, 0, sizeof self->values);
    self->values[K] = 4.0;
    self->values[MASS] = 1.0;
    self->values[X] = 1.0;
    self->values[ORDER] = 1.0;
    self->v = 0.0;
    self->steps = 0;
}

const char *fmi2GetTypesPlatform(void) { return fmi2TypesPlatform; }
const char *fmi2GetVersion(void) { return fmi2Version; }
fmi2Status fmi2SetDebugLogging(fmi2Component c, fmi2Boolean on, size_t n, const fmi2String s[]) { return fmi2OK; }

fmi2Component fmi2Instantiate(fmi2String name, fmi2Type type, fmi2String guid, fmi2String resources,
                              const fmi2CallbackFunctions *functions, fmi2Boolean visible, fmi2Boolean logging) {
    Instance *self = calloc(1, sizeof *self);
    self->functions = *functions;
    start(self);
    return self;
}

void fmi2FreeInstance(fmi2Component c) { free(c); }
fmi2Status fmi2SetupExperiment(fmi2Component c, fmi2Boolean t, fmi2Real tolerance, fmi2Real begin, fmi2Boolean s,
                               fmi2Real stop) { return fmi2OK; }
fmi2Status fmi2EnterInitializationMode(fmi2Component c) { return fmi2OK; }
fmi2Status fmi2Terminate(fmi2Component c) { return fmi2OK; }
fmi2Status fmi2Reset(fmi2Component c) { start(c); return fmi2OK; }

fmi2Status fmi2ExitInitializationMode(fmi2Component c) {
    Instance *self = c;
    if (self->values[K] > 0) return fmi2OK;
    self->functions.logger(self->functions.componentEnvironment, "oscillator", fmi2Error, "error",
                           "stiffness k is not positive");
    return fmi2Error;
}

fmi2Status fmi2GetReal(fmi2Component c, const fmi2ValueReference vr[], size_t n, fmi2Real out[]) {
    Instance *self = c;
    self->values[ENERGY] = 0.5 * (self->values[K] * self->values[X] * self->values[X] + self->values[MASS] * self->v * self->v);
    for (size_t i = 0; i < n; i++) out[i] = self->values[vr[i]];
    return fmi2OK;
}

fmi2Status fmi2SetReal(fmi2Component c, const fmi2ValueReference vr[], size_t n, const fmi2Real in[]) {
    for (size_t i = 0; i < n; i++) ((Instance *)c)->values[vr[i]] = in[i];
    return fmi2OK;
}

fmi2Status fmi2GetInteger(fmi2Component c, const fmi2ValueReference vr[], size_t n, fmi2Integer out[]) {
    for (size_t i = 0; i < n; i++) out[i] = vr[i] == VALUES ? ((Instance *)c)->steps : (int)((Instance *)c)->values[vr[i]];
    return fmi2OK;
}

fmi2Status fmi2SetInteger(fmi2Component c, const fmi2ValueReference vr[], size_t n, const fmi2Integer in[]) {
    for (size_t i = 0; i < n; i++) ((Instance *)c)->values[vr[i]] = in[i];
    return fmi2OK;
}

fmi2Status fmi2GetBoolean(fmi2Component c, const fmi2ValueReference vr[], size_t n, fmi2Boolean out[]) {
    for (size_t i = 0; i < n; i++) out[i] = ((Instance *)c)->values[vr[i]] != 0;
    return fmi2OK;
}

fmi2Status fmi2SetBoolean(fmi2Component c, const fmi2ValueReference vr[], size_t n, const fmi2Boolean in[]) {
    for (size_t i = 0; i < n; i++) ((Instance *)c)->values[vr[i]] = in[i];
    return fmi2OK;
}

fmi2Status fmi2DoStep(fmi2Component c, fmi2Real now, fmi2Real step, fmi2Boolean no_set) {
    Instance *self = c;
    double left = step;
    while (left > 0) {
        double h = left < 1e-4 ? left : 1e-4;
        double pull = -self->values[K] * self->values[X] + self->values[FORCE] - (self->values[DAMPED] ? self->v : 0.0);
        self->v += h * pull / self->values[MASS];
        self->values[X] += h * self->v;
        left -= h;
    }
    self->steps++;
    return fmi2OK;
}

#define REFUSED { return fmi2Error; }
fmi2Status fmi2GetString(fmi2Component c, const fmi2ValueReference vr[], size_t n, fmi2String out[]) REFUSED
fmi2Status fmi2SetString(fmi2Component c, const fmi2ValueReference vr[], size_t n, const fmi2String in[]) REFUSED
fmi2Status fmi2GetFMUstate(fmi2Component c, fmi2FMUstate *s) REFUSED
fmi2Status fmi2SetFMUstate(fmi2Component c, fmi2FMUstate s) REFUSED
fmi2Status fmi2FreeFMUstate(fmi2Component c, fmi2FMUstate *s) REFUSED
fmi2Status fmi2SerializedFMUstateSize(fmi2Component c, fmi2FMUstate s, size_t *n) REFUSED
fmi2Status fmi2SerializeFMUstate(fmi2Component c, fmi2FMUstate s, fmi2Byte b[], size_t n) REFUSED
fmi2Status fmi2DeSerializeFMUstate(fmi2Component c, const fmi2Byte b[], size_t n, fmi2FMUstate *s) REFUSED
fmi2Status fmi2GetDirectionalDerivative(fmi2Component c, const fmi2ValueReference u[], size_t nu,
                                        const fmi2ValueReference k[], size_t nk, const fmi2Real d[],
                                        fmi2Real out[]) REFUSED
fmi2Status fmi2SetRealInputDerivatives(fmi2Component c, const fmi2ValueReference vr[], size_t n,
                                       const fmi2Integer order[], const fmi2Real v[]) REFUSED
fmi2Status fmi2GetRealOutputDerivatives(fmi2Component c, const fmi2ValueReference vr[], size_t n,
                                        const fmi2Integer order[], fmi2Real v[]) REFUSED
fmi2Status fmi2CancelStep(fmi2Component c) REFUSED
fmi2Status fmi2GetStatus(fmi2Component c, const fmi2StatusKind k, fmi2Status *s) REFUSED
fmi2Status fmi2GetRealStatus(fmi2Component c, const fmi2StatusKind k, fmi2Real *s) REFUSED
fmi2Status fmi2GetIntegerStatus(fmi2Component c, const fmi2StatusKind k, fmi2Integer *s) REFUSED
fmi2Status fmi2GetBooleanStatus(fmi2Component c, const fmi2StatusKind k, fmi2Boolean *s) REFUSED
fmi2Status fmi2GetStringStatus(fmi2Component c, const fmi2StatusKind k, fmi2String *s) REFUSED
