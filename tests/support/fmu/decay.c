/* An FMU of FMI 3.0, for co-simulation and model exchange: x' = -k x, or k x if `grows`, from x = 1. It asks for the
   end of the simulation once x < low. `steps` counts communication or integrator steps since the last reset. */
#include <math.h>
#include <stdlib.h>
#include "fmi3FunctionTypes.h"

enum { X = 1, RATE, K, LOW, GROWS, STEPS };

typedef struct {
    double x, k;
    float low;
    bool grows, ended;
    int steps;
} Instance;

static Instance *start(Instance *self) {
    bool ended = self->ended; /* like unit Stair of the Reference FMUs, it stays so after a reset */
    *self = (Instance){.x = 1.0, .k = 1.0, .ended = ended};
    return self;
}

static double rate(const Instance *self) { return (self->grows ? self->k : -self->k) * self->x; }

static void counted(Instance *self, bool *ends) {
    self->steps++;
    self->ended |= self->x < self->low;
    *ends = self->ended;
}

const char *fmi3GetVersion(void) { return "3.0"; }

fmi3Instance fmi3InstantiateModelExchange(fmi3String name, fmi3String token, fmi3String resources, fmi3Boolean visible,
                                          fmi3Boolean logs, fmi3InstanceEnvironment env, fmi3LogMessageCallback log) {
    return start(calloc(1, sizeof(Instance)));
}

fmi3Instance fmi3InstantiateCoSimulation(fmi3String name, fmi3String token, fmi3String resources, fmi3Boolean visible,
                                         fmi3Boolean logs, fmi3Boolean events, fmi3Boolean early,
                                         const fmi3ValueReference vr[], size_t n, fmi3InstanceEnvironment env,
                                         fmi3LogMessageCallback log, fmi3IntermediateUpdateCallback update) {
    return start(calloc(1, sizeof(Instance)));
}

void fmi3FreeInstance(Instance *self) { free(self); }
fmi3Status fmi3Reset(Instance *self) { start(self); return fmi3OK; }

fmi3Status fmi3GetFloat64(Instance *self, const fmi3ValueReference vr[], size_t n, double out[], size_t values) {
    for (size_t i = 0; i < n; i++) out[i] = vr[i] == X ? self->x : vr[i] == K ? self->k : rate(self);
    return fmi3OK;
}

fmi3Status fmi3SetFloat64(Instance *self, const fmi3ValueReference vr[], size_t n, const double in[], size_t values) {
    for (size_t i = 0; i < n; i++) *(vr[i] == K ? &self->k : &self->x) = in[i];
    return fmi3OK;
}

fmi3Status fmi3SetFloat32(Instance *self, const fmi3ValueReference vr[], size_t n, const float in[], size_t values) {
    self->low = in[n - 1];
    return fmi3OK;
}

fmi3Status fmi3SetBoolean(Instance *self, const fmi3ValueReference vr[], size_t n, const bool in[], size_t values) {
    self->grows = in[n - 1];
    return fmi3OK;
}

fmi3Status fmi3GetInt32(Instance *self, const fmi3ValueReference vr[], size_t n, int out[], size_t values) {
    for (size_t i = 0; i < n; i++) out[i] = self->steps;
    return fmi3OK;
}

fmi3Status fmi3DoStep(Instance *self, double now, double step, fmi3Boolean no_set, bool *events, bool *ends,
                      bool *early, double *until) {
    self->x *= exp((self->grows ? self->k : -self->k) * step);
    *events = *early = false;
    *until = now + step;
    counted(self, ends);
    return fmi3OK;
}

fmi3Status fmi3GetContinuousStates(Instance *self, double x[], size_t n) { x[0] = self->x; return fmi3OK; }
fmi3Status fmi3SetContinuousStates(Instance *self, const double x[], size_t n) { self->x = x[0]; return fmi3OK; }
fmi3Status fmi3GetContinuousStateDerivatives(Instance *self, double dx[], size_t n) { dx[0] = rate(self); return fmi3OK; }
fmi3Status fmi3GetNominalsOfContinuousStates(Instance *self, double x[], size_t n) { x[0] = 1.0; return fmi3OK; }
fmi3Status fmi3GetNumberOfContinuousStates(Instance *self, size_t *n) { *n = 1; return fmi3OK; }
fmi3Status fmi3GetNumberOfEventIndicators(Instance *self, size_t *n) { *n = 0; return fmi3OK; }
fmi3Status fmi3GetEventIndicators(Instance *self, double z[], size_t n) { return fmi3OK; }

fmi3Status fmi3CompletedIntegratorStep(Instance *self, fmi3Boolean no_set, bool *events, bool *ends) {
    *events = false;
    counted(self, ends);
    return fmi3OK;
}

fmi3Status fmi3UpdateDiscreteStates(Instance *self, bool *again, bool *ends, bool *nominals, bool *states, bool *timed,
                                    double *next) {
    *again = *ends = *nominals = *states = *timed = false;
    return fmi3OK;
}

/* The rest, as C without prototypes: those that do nothing, and those that are not expected. */
#define NOTHING(function) int fmi3##function(void) { return fmi3OK; }
#define REFUSED(function) int fmi3##function(void) { return fmi3Error; }
NOTHING(EnterInitializationMode) NOTHING(ExitInitializationMode) NOTHING(EnterContinuousTimeMode)
NOTHING(EnterEventMode) NOTHING(EnterStepMode) NOTHING(SetTime) NOTHING(SetDebugLogging) NOTHING(Terminate)
void *fmi3InstantiateScheduledExecution(void) { return NULL; }
REFUSED(GetFloat32) REFUSED(GetInt8) REFUSED(GetUInt8) REFUSED(GetInt16) REFUSED(GetUInt16) REFUSED(GetUInt32)
REFUSED(GetInt64) REFUSED(GetUInt64) REFUSED(GetBoolean) REFUSED(GetString) REFUSED(GetBinary) REFUSED(GetClock)
REFUSED(SetInt8) REFUSED(SetUInt8) REFUSED(SetInt16) REFUSED(SetUInt16) REFUSED(SetInt32) REFUSED(SetUInt32)
REFUSED(SetInt64) REFUSED(SetUInt64) REFUSED(SetString) REFUSED(SetBinary) REFUSED(SetClock)
REFUSED(GetNumberOfVariableDependencies) REFUSED(GetVariableDependencies) REFUSED(GetFMUState) REFUSED(SetFMUState)
REFUSED(FreeFMUState) REFUSED(SerializedFMUStateSize) REFUSED(SerializeFMUState) REFUSED(DeserializeFMUState)
REFUSED(GetDirectionalDerivative) REFUSED(GetAdjointDerivative) REFUSED(EnterConfigurationMode)
REFUSED(ExitConfigurationMode) REFUSED(GetIntervalDecimal) REFUSED(GetIntervalFraction) REFUSED(GetShiftDecimal)
REFUSED(GetShiftFraction) REFUSED(SetIntervalDecimal) REFUSED(SetIntervalFraction) REFUSED(SetShiftDecimal)
REFUSED(SetShiftFraction) REFUSED(EvaluateDiscreteStates) REFUSED(GetOutputDerivatives) REFUSED(ActivateModelPartition)
